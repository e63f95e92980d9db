from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.api.samples import apps, configmap, core, names, pod, workload
from tests.contract.client import Object, Server, until

FINALIZER = "contract.example.org/hold"


def let_go(server: Server, path: str) -> None:
    server.patch(path, {"metadata": {"finalizers": None}})


def test_a_deletion_answers_what_is_gone(server: Server, namespace: str) -> None:
    made = server.make(core(namespace, "configmaps"), configmap("one"))
    answer = server.ask("DELETE", core(namespace, "configmaps", "one"))
    assert answer.code == 200
    assert (answer.body["kind"], answer.body["status"]) == ("Status", "Success")
    assert answer.body["details"] == {"name": "one", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert server.is_gone(core(namespace, "configmaps", "one"))


def test_a_deletion_of_what_is_gone_is_not_found(server: Server, namespace: str) -> None:
    answer = server.ask("DELETE", core(namespace, "configmaps", "none"))
    assert (answer.code, answer.reason) == (404, "NotFound")


def test_a_collection_is_deleted_by_selector(server: Server, namespace: str) -> None:
    path = core(namespace, "secrets")
    for name, label in (("one", "a"), ("two", "a"), ("three", "b")):
        server.make(path, {"metadata": {"name": name, "labels": {"l": label}}})
    answer = server.ask("DELETE", f"{path}?labelSelector=l%3Da")
    assert answer.code == 200
    assert names(server.get(f"{path}?labelSelector=l")) == ["three"]


def test_the_deletion_of_a_collection_answers_metadata_alone(server: Server, namespace: str) -> None:
    """Whole pods of a fleet would be tens of megabytes."""
    server.make(core(namespace, "configmaps"), configmap("one", labels={"l": "a"}))
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    answer = server.ask("DELETE", f"{core(namespace, 'configmaps')}?labelSelector=l%3Da", accept=accept)
    assert (answer.code, answer.body["kind"]) == (200, "PartialObjectMetadataList")
    assert names(answer.body) == ["one"]
    assert all({*item} <= {"kind", "apiVersion", "metadata"} for item in answer.body["items"])


def test_a_finalizer_holds_an_object_that_is_deleted(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    answer = server.ask("DELETE", path)
    assert answer.code == 200
    assert answer.body["kind"] == "ConfigMap"
    held = server.get(path)["metadata"]
    assert held["deletionTimestamp"].endswith("Z")
    assert held["deletionGracePeriodSeconds"] == 0
    let_go(server, path)
    assert server.is_gone(path)


def test_an_object_that_is_being_deleted_can_still_be_changed(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    server.delete(path)
    assert server.patch(path, {"data": {"k": "v"}})["data"] == {"k": "v"}
    let_go(server, path)


def test_an_object_that_is_being_deleted_takes_no_new_finalizers(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    server.delete(path)
    answer = server.ask(
        "PATCH",
        path,
        {"metadata": {"finalizers": [FINALIZER, "contract.example.org/more"]}},
        "application/merge-patch+json",
    )
    assert (answer.code, answer.reason) in {(403, "Forbidden"), (422, "Invalid")}
    assert "no new finalizers can be added if the object is being deleted" in answer.message
    let_go(server, path)


def test_the_time_of_a_deletion_stays_when_it_is_asked_for_again(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    server.delete(path)
    first = server.get(path)["metadata"]["deletionTimestamp"]
    server.delete(path)
    assert server.get(path)["metadata"]["deletionTimestamp"] == first
    let_go(server, path)


def test_the_time_of_a_deletion_cannot_be_taken_back(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    server.delete(path)
    server.ask("PATCH", path, {"metadata": {"deletionTimestamp": None}}, "application/merge-patch+json")
    assert "deletionTimestamp" in server.get(path)["metadata"]
    let_go(server, path)


def test_an_apply_to_an_object_that_is_being_deleted_changes_it(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=[FINALIZER]))
    server.delete(path)
    answer = server.apply(path, configmap("one", {"k": "v"}), manager="me")
    assert answer.code == 200
    assert "deletionTimestamp" in answer.body["metadata"]
    let_go(server, path)


def test_an_unscheduled_pod_goes_at_once(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    answer = server.ask("DELETE", core(namespace, "pods", "p"))
    assert answer.code == 200
    assert server.is_gone(core(namespace, "pods", "p"))


@pytest.fixture
def bound(server: Server, namespace: str) -> Iterator[Object]:
    """A pod of a node that has no kubelet."""
    node = f"node-{namespace}"
    server.make("/api/v1/nodes", {"metadata": {"name": node}})
    yield server.make(
        core(namespace, "pods"), pod("p", nodeName=node, nodeSelector={}, tolerations=[{"operator": "Exists"}])
    )
    server.delete(core(namespace, "pods", "p") + "?gracePeriodSeconds=0")
    server.delete(f"/api/v1/nodes/{node}")


def test_a_pod_on_a_node_is_given_its_grace_period(server: Server, namespace: str, bound: Object) -> None:
    assert "deletionTimestamp" not in bound["metadata"]
    answer = server.ask("DELETE", core(namespace, "pods", "p"))
    assert answer.code == 200
    held = server.get(core(namespace, "pods", "p"))["metadata"]
    assert held["deletionGracePeriodSeconds"] == 30
    assert held["deletionTimestamp"] > held["creationTimestamp"]


def test_a_grace_period_can_be_shortened_and_not_made_longer(server: Server, namespace: str, bound: Object) -> None:
    path = core(namespace, "pods", bound["metadata"]["name"])
    for asked, left in ((20, 20), (25, 20), (10, 10)):
        server.ask("DELETE", path, {"gracePeriodSeconds": asked})
        assert server.get(path)["metadata"]["deletionGracePeriodSeconds"] == left


def test_a_pod_goes_at_once_without_a_grace_period(server: Server, namespace: str, bound: Object) -> None:
    path = core(namespace, "pods", bound["metadata"]["name"])
    server.ask("DELETE", path, {"gracePeriodSeconds": 0})
    assert server.is_gone(path)


def test_a_kubelet_ends_a_pod_with_a_zero_grace_period(server: Server, namespace: str, bound: Object) -> None:
    path = core(namespace, "pods", "p")
    server.delete(path)
    server.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": bound["metadata"]["uid"]}})
    assert server.is_gone(path)


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_a_propagation_policy_is_accepted(server: Server, namespace: str, policy: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one"))
    assert server.ask("DELETE", path, {"propagationPolicy": policy}).code == 200
    until(lambda: server.is_gone(path))


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize(("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")])
def test_policies_that_wait_are_finalizers(server: Server, namespace: str, policy: str, finalizer: str) -> None:
    path = apps(namespace, "deployments", "d")
    server.make(apps(namespace, "deployments"), workload("Deployment", "d", replicas=0))
    answer = server.ask("DELETE", f"{path}?propagationPolicy={policy}")
    assert answer.code == 200
    assert answer.body["metadata"]["finalizers"] == [finalizer]
    until(lambda: server.is_gone(path))


def test_an_unknown_policy_is_invalid(server: Server, namespace: str) -> None:
    server.make(core(namespace, "configmaps"), configmap("one"))
    answer = server.ask("DELETE", core(namespace, "configmaps", "one"), {"propagationPolicy": "Maybe"})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert 'propagationPolicy: Unsupported value: "Maybe"' in answer.message


def test_a_policy_and_orphan_dependents_exclude_each_other(server: Server, namespace: str) -> None:
    server.make(core(namespace, "configmaps"), configmap("one"))
    body = {"propagationPolicy": "Orphan", "orphanDependents": True}
    answer = server.ask("DELETE", core(namespace, "configmaps", "one"), body)
    assert (answer.code, answer.reason) == (422, "Invalid")


def test_an_owner_reference_needs_its_parts(server: Server, namespace: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}
    answer = server.ask("POST", core(namespace, "configmaps"), configmap("one", ownerReferences=[owner]))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "metadata.ownerReferences[0].uid" in answer.message or "metadata.ownerReferences.uid" in answer.message


def test_an_object_has_one_controller_at_most(server: Server, namespace: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True}
    both = [owner, {**owner, "name": "y", "uid": "w"}]
    answer = server.ask("POST", core(namespace, "configmaps"), configmap("one", ownerReferences=both))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "Only one reference can have Controller set to true" in answer.message


def test_a_finalizer_has_a_domain(server: Server, namespace: str) -> None:
    answer = server.ask("POST", core(namespace, "configmaps"), configmap("one", finalizers=["hold"]))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "metadata.finalizers[0]" in answer.message
