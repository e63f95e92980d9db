from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.api.samples import core, pod
from tests.contract.client import MERGE, Object, Server

TOLERANT = [{"operator": "Exists"}]
TWO = [{"name": "one", "image": "example.org/one:1"}, {"name": "two", "image": "example.org/two:1"}]


@pytest.fixture
def node(server: Server, namespace: str) -> Iterator[str]:
    """A node without a kubelet."""
    name = f"node-{namespace}"
    server.make("/api/v1/nodes", {"metadata": {"name": name}})
    yield name
    for found in server.get(core(namespace, "pods"))["items"]:
        server.delete(core(namespace, "pods", found["metadata"]["name"]) + "?gracePeriodSeconds=0")
    server.delete(f"/api/v1/nodes/{name}")


def eviction(server: Server, name: str, **options: object) -> Object:
    version = "policy/v1" if server.at_least(1, 22) else "policy/v1beta1"
    return {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}, **options}


def test_a_pod_is_filled_in_with_defaults(server: Server, namespace: str) -> None:
    spec = server.make(core(namespace, "pods"), pod("p"))["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["serviceAccountName"], spec["enableServiceLinks"], spec["priority"]) == ("default", True, 0)
    (container,) = spec["containers"]
    assert (container["imagePullPolicy"], container["terminationMessagePolicy"]) == ("IfNotPresent", "File")


def test_a_pod_tolerates_a_node_that_is_away_for_five_minutes(server: Server, namespace: str) -> None:
    tolerations = server.make(core(namespace, "pods"), pod("p"))["spec"]["tolerations"]
    assert {(row["key"], row["effect"], row["tolerationSeconds"]) for row in tolerations} == {
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    }


def test_a_new_pod_is_pending(server: Server, namespace: str) -> None:
    status = server.make(core(namespace, "pods"), pod("p"))["status"]
    assert (status["phase"], status["qosClass"]) == ("Pending", "BestEffort")


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("serviceAccountName", "none", 'pods "p" is forbidden: error looking up service account {0}/none: '),
        ("priorityClassName", "none", 'pods "p" is forbidden: no PriorityClass with name none was found'),
        ("runtimeClassName", "none", 'pods "p" is forbidden: pod rejected: RuntimeClass "none" not found'),
    ],
)
def test_what_a_pod_names_has_to_exist(server: Server, namespace: str, field: str, value: str, message: str) -> None:
    body = pod("p")
    body["spec"][field] = value
    answer = server.ask("POST", core(namespace, "pods"), body)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message.startswith(message.format(namespace))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [{"image": "b"}]}, "spec.containers[0].name"),
        ({"containers": [TWO[0], TWO[0]]}, "spec.containers[1].name"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        (
            {"containers": [{**TWO[0], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
        ),
    ],
)
def test_a_pod_that_makes_no_sense_is_invalid(server: Server, namespace: str, spec: Object, field: str) -> None:
    answer = server.ask("POST", core(namespace, "pods"), pod("p", **spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]


def test_a_pods_specification_hardly_changes(server: Server, namespace: str) -> None:
    """A validation whose content has changed is therefore deleted and created again."""
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("PATCH", core(namespace, "pods", "p"), {"spec": {"nodeSelector": {"a": "b"}}}, MERGE)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "pod updates may not change fields other than `spec.containers[*].image`" in answer.message
    change = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.org/other:2"}]
    answer = server.ask("PATCH", core(namespace, "pods", "p"), change, "application/json-patch+json")
    assert answer.body["spec"]["containers"][0]["image"] == "example.org/other:2"


def test_a_pods_labels_change_at_any_time(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    found = server.patch(core(namespace, "pods", "p"), {"metadata": {"labels": {"a": "b"}}})
    assert found["metadata"]["labels"] == {"a": "b"}


def test_a_pod_is_bound_to_a_node(server: Server, namespace: str, node: str) -> None:
    server.make(core(namespace, "pods"), pod("p", schedulerName="absent"))
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}
    assert server.ask("POST", core(namespace, "pods", "p") + "/binding", body).code == 201
    found = server.get(core(namespace, "pods", "p"))
    assert found["spec"]["nodeName"] == node
    conditions = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"


def test_a_pod_is_bound_once(server: Server, namespace: str, node: str) -> None:
    server.make(core(namespace, "pods"), pod("p", nodeName=node, tolerations=TOLERANT))
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}
    answer = server.ask("POST", core(namespace, "pods", "p") + "/binding", body)
    assert (answer.code, answer.reason) == (409, "Conflict")


def test_the_log_of_an_unscheduled_pod_is_empty(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("GET", core(namespace, "pods", "p") + "/log")
    assert (answer.code, answer.body) == (204, "")


def test_the_log_of_a_pod_that_is_not_there_is_not_found(server: Server, namespace: str) -> None:
    answer = server.ask("GET", core(namespace, "pods", "none") + "/log")
    assert (answer.code, answer.message) == (404, 'pods "none" not found')


def test_the_log_of_a_missing_container_is_a_bad_request(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("GET", core(namespace, "pods", "p") + "/log?container=none")
    assert (answer.code, answer.message) == (400, "container none is not valid for pod p")


def test_the_log_of_several_containers_needs_a_choice(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p", containers=TWO))
    answer = server.ask("GET", core(namespace, "pods", "p") + "/log")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert answer.message == "a container name must be specified for pod p, choose one of: [one two]"


def test_the_log_of_an_init_container_can_be_chosen(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p", initContainers=[{"name": "first", "image": "example.org/i:1"}]))
    assert server.ask("GET", core(namespace, "pods", "p") + "/log?container=first").code == 204


def test_the_log_of_a_pod_whose_node_is_gone_is_not_found(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p", nodeName="contract-nowhere", tolerations=TOLERANT))
    answer = server.ask("GET", core(namespace, "pods", "p") + "/log")
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert '"contract-nowhere" not found' in answer.message


@pytest.mark.parametrize(("query", "code"), [("tailLines=-1", 422), ("tailLines=x", 400), ("limitBytes=0", 422)])
def test_a_log_is_asked_for_with_numbers_that_make_sense(server: Server, namespace: str, query: str, code: int) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    assert server.ask("GET", f"{core(namespace, 'pods', 'p')}/log?{query}").code == code


def test_an_unscheduled_pod_is_evicted_at_once(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("POST", core(namespace, "pods", "p") + "/eviction", eviction(server, "p"))
    assert (answer.code, answer.body["status"]) == (201, "Success")
    assert server.is_gone(core(namespace, "pods", "p"))


def test_a_pod_on_a_node_is_evicted_with_its_grace_period(server: Server, namespace: str, node: str) -> None:
    server.make(core(namespace, "pods"), pod("p", nodeName=node, nodeSelector={}, tolerations=TOLERANT))
    server.ask("POST", core(namespace, "pods", "p") + "/eviction", eviction(server, "p"))
    assert server.get(core(namespace, "pods", "p"))["metadata"]["deletionGracePeriodSeconds"] == 30


def test_an_eviction_may_say_how_to_delete(server: Server, namespace: str, node: str) -> None:
    made = server.make(core(namespace, "pods"), pod("p", nodeName=node, nodeSelector={}, tolerations=TOLERANT))
    wrong = eviction(server, "p", deleteOptions={"preconditions": {"uid": "other"}})
    assert server.ask("POST", core(namespace, "pods", "p") + "/eviction", wrong).code == 409
    right = {"gracePeriodSeconds": 5, "preconditions": {"uid": made["metadata"]["uid"]}}
    server.ask("POST", core(namespace, "pods", "p") + "/eviction", eviction(server, "p", deleteOptions=right))
    assert server.get(core(namespace, "pods", "p"))["metadata"]["deletionGracePeriodSeconds"] == 5


def test_a_dry_run_of_an_eviction_evicts_no_pod(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    path = core(namespace, "pods", "p")
    assert server.ask("POST", f"{path}/eviction?dryRun=All", eviction(server, "p")).code == 201
    assert "deletionTimestamp" not in server.get(path)["metadata"]


def test_an_eviction_of_a_pod_that_is_not_there_is_not_found(server: Server, namespace: str) -> None:
    answer = server.ask("POST", core(namespace, "pods", "none") + "/eviction", eviction(server, "none"))
    assert (answer.code, answer.message) == (404, 'pods "none" not found')


def test_an_eviction_names_its_pod(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("POST", core(namespace, "pods", "p") + "/eviction", eviction(server, "other"))
    assert (answer.code, answer.message) == (400, "name in URL does not match name in Eviction object")


def test_a_kubelet_writes_a_pods_status(server: Server, namespace: str, node: str) -> None:
    server.make(core(namespace, "pods"), pod("p", nodeName=node, nodeSelector={}, tolerations=TOLERANT))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.1.2.3"}
    found = server.patch(core(namespace, "pods", "p") + "/status", {"status": status})
    assert (found["status"]["phase"], found["status"]["podIP"]) == ("Running", "10.1.2.3")
