"""The rules behind the verbs: defaults, checks, generations, ownership, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.deletion import DeleteOptions
from gpu_provision.sandbox.apiserver.patches import merged
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.status import StatusError
from tests.sandbox.apiserver.conftest import POD, Cluster, workload

PODS = "api/v1/namespaces/default/pods"
DAEMONSETS = "apis/apps/v1/namespaces/default/daemonsets"


def _patch(cluster: Cluster, path: str, patch: dict[str, Any], manager: str = "me") -> dict[str, Any]:
    return cluster.registry.change(cluster.at(path), lambda obj: merged(obj, patch), WriteOptions(manager)).copy()


def _refusal(call: Any, *arguments: Any) -> StatusError:
    with pytest.raises(StatusError) as refusal:
        call(*arguments)
    return refusal.value


CONFIGMAPS = "api/v1/namespaces/default/configmaps"
OTHER_SELECTOR = {**workload(), "selector": {"matchLabels": {"a": "b"}}}


def _named(name: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name}} if spec is None else {"metadata": {"name": name}, "spec": spec}


def test_every_cluster_has_its_first_objects(cluster: Cluster) -> None:
    """Namespaces with their furniture, priority classes, the Service of the API server."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        assert cluster.get(f"api/v1/namespaces/{name}")["status"]["phase"] == "Active"
        assert cluster.get(f"api/v1/namespaces/{name}/serviceaccounts/default")
        assert cluster.get(f"api/v1/namespaces/{name}/configmaps/kube-root-ca.crt")["data"]
    assert cluster.get("apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")["value"] == 2000001000
    assert cluster.get("api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"] == "10.96.0.1"


def test_a_pod_gets_the_defaults_that_clients_rely_on(cluster: Cluster) -> None:
    """The specification, the priority, the tolerations and the first status."""
    cluster.create(
        PODS, "one", spec={"containers": [{"name": "main", "image": "app", "resources": {"limits": {"cpu": "1"}}}]}
    )
    pod = cluster.get(f"{PODS}/one")
    [container] = pod["spec"]["containers"]
    assert (container["imagePullPolicy"], container["resources"]["requests"]) == ("Always", {"cpu": "1"})
    assert (pod["spec"]["restartPolicy"], pod["spec"]["serviceAccountName"]) == ("Always", "default")
    assert {row["key"] for row in pod["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert pod["status"] == {"phase": "Pending", "qosClass": "Burstable"}


def test_generation_counts_changes_of_the_spec_only(cluster: Cluster) -> None:
    """Labels and status leave it alone; a write that changes nothing keeps the resourceVersion."""
    cluster.create(DAEMONSETS, "one", spec=workload())
    path = f"{DAEMONSETS}/one"
    assert _patch(cluster, path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["generation"] == 1
    assert _patch(cluster, f"{path}/status", {"status": {"numberReady": 3}})["metadata"]["generation"] == 1
    changed = _patch(cluster, path, {"spec": {"minReadySeconds": 5}})
    assert changed["metadata"]["generation"] == 2
    again = _patch(cluster, path, {"spec": {"minReadySeconds": 5}})
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


def test_status_and_the_rest_are_written_apart(cluster: Cluster) -> None:
    """A write to one leaves the other as it is."""
    cluster.create(DAEMONSETS, "one", spec=workload(), status={"numberReady": 9})
    path = f"{DAEMONSETS}/one"
    assert cluster.get(path)["status"]["numberReady"] == 0
    assert _patch(cluster, path, {"status": {"numberReady": 9}})["status"]["numberReady"] == 0
    both = _patch(cluster, f"{path}/status", {"status": {"numberReady": 2}, "spec": {"minReadySeconds": 7}})
    assert (both["status"]["numberReady"], both["spec"].get("minReadySeconds")) == (2, None)


def test_an_update_from_an_old_version_is_a_conflict(cluster: Cluster) -> None:
    """409 with the words that clients look for."""
    old = cluster.create("api/v1/namespaces/default/configmaps", "one", data={"a": "1"})
    path = "api/v1/namespaces/default/configmaps/one"
    _patch(cluster, path, {"data": {"a": "2"}})
    refusal = _refusal(cluster.registry.update, cluster.at(path), {**old, "data": {"a": "3"}})
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    assert refusal.message.startswith('Operation cannot be fulfilled on configmaps "one": the object has been modified')


def test_a_patch_for_another_uid_is_refused(cluster: Cluster) -> None:
    """So a patch never hits an object that was made again under the same name."""
    cluster.create("api/v1/nodes", "n1")
    target = cluster.at("api/v1/nodes/n1")
    refusal = _refusal(cluster.registry.change, target, lambda obj: merged(obj, {"metadata": {"uid": "other"}}))
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    old = {**cluster.get("api/v1/nodes/n1")}
    old["metadata"] = {**old["metadata"], "uid": "other"}
    assert _refusal(cluster.registry.update, target, old).code == 409


@pytest.mark.parametrize(
    ("path", "body", "code", "text"),
    [
        (PODS, _named("Bad_Name", POD), 422, "a lowercase RFC 1123 subdomain must consist of"),
        (PODS, {"metadata": {}, "spec": POD}, 422, "name or generateName is required"),
        (PODS, _named("x", {}), 422, 'Pod "x" is invalid: spec.containers: Required value'),
        (PODS, _named("x", {"containers": "no"}), 400, "a field has the wrong type"),
        (
            PODS,
            {"metadata": {"name": "x", "namespace": "other"}},
            400,
            "does not match the namespace sent on the request",
        ),
        (PODS, {"kind": "Node", "metadata": {"name": "x"}}, 400, "Pod in v1 is expected"),
        (PODS, _named("x", {**POD, "priorityClassName": "none"}), 403, "no PriorityClass with name none"),
        (PODS, _named("x", {**POD, "runtimeClassName": "nvidia"}), 403, 'RuntimeClass "nvidia" not found'),
        (PODS, _named("x", {**POD, "serviceAccountName": "sa"}), 403, 'serviceaccount "sa" not found'),
        (DAEMONSETS, _named("x", {"template": {}}), 422, "spec.selector: Required value"),
        (DAEMONSETS, _named("x", OTHER_SELECTOR), 422, "`selector` does not match template `labels`"),
        ("api/v1/namespaces/none/configmaps", _named("x"), 404, 'namespaces "none" not found'),
        (CONFIGMAPS, _named("kube-root-ca.crt"), 409, "already exists"),
        (CONFIGMAPS, {"metadata": {"name": "x", "labels": {"a": "-"}}}, 422, "a valid label must be"),
    ],
)
def test_a_wrong_object_is_refused_as_by_kubernetes(
    cluster: Cluster, path: str, body: dict[str, Any], code: int, text: str
) -> None:
    """Code and words are those that people know."""
    refusal = _refusal(cluster.registry.create, cluster.at(path), body)
    assert (refusal.code, text in refusal.message) == (code, True), refusal.message
    assert refusal.status()["kind"] == "Status"


def test_immutable_fields_stay(cluster: Cluster) -> None:
    """A selector, a pod's specification, a Job's template, a role binding's role."""
    cluster.create(DAEMONSETS, "one", spec=workload())
    refusal = _refusal(_patch, cluster, f"{DAEMONSETS}/one", {"spec": {"selector": {"matchLabels": {"other": "x"}}}})
    assert "field is immutable" in refusal.message
    cluster.create(PODS, "one", spec=POD)
    refusal = _refusal(_patch, cluster, f"{PODS}/one", {"spec": {"hostNetwork": True}})
    assert "pod updates may not change fields other than" in refusal.message
    image = {"spec": {"containers": [{**cluster.get(f"{PODS}/one")["spec"]["containers"][0], "image": "other:2"}]}}
    assert _patch(cluster, f"{PODS}/one", image)["spec"]["containers"][0]["image"] == "other:2"


def test_generated_names_differ(cluster: Cluster) -> None:
    """GenerateName gives each object a suffix of its own."""
    target = cluster.at(PODS)
    names = {
        cluster.registry.create(target, {"metadata": {"generateName": "app-"}, "spec": POD}).object["metadata"]["name"]
        for _ in range(20)
    }
    assert len(names) == 20
    assert all(name.startswith("app-") and len(name) == 9 for name in names)


def test_a_dry_run_keeps_nothing(cluster: Cluster) -> None:
    """Create, patch, apply and delete are checked and shown, and the cluster stays as it was."""
    how, before = WriteOptions("me", dry_run=True), cluster.store.version
    path = "api/v1/namespaces/default/configmaps"
    cluster.registry.create(cluster.at(path), {"metadata": {"name": "x"}}, how)
    root = cluster.at(f"{path}/kube-root-ca.crt")
    assert cluster.registry.change(root, lambda obj: merged(obj, {"data": {"a": "b"}}), how).object["data"]["a"] == "b"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "y"}}
    assert cluster.registry.apply(cluster.at(f"{path}/y"), config, how)[1]
    cluster.registry.delete(root, DeleteOptions(dry_run=True))
    assert (cluster.store.version, cluster.store.count("/configmaps")) == (before, 4)


def test_apply_twice_writes_once_and_conflicts_name_the_owner(cluster: Cluster) -> None:
    """An apply that changes nothing keeps resourceVersion and the time in managedFields."""
    target = cluster.at(f"{DAEMONSETS}/one")

    def config(image: str) -> dict[str, Any]:
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "one"}, "spec": workload(image)}

    first, new = cluster.registry.apply(target, config("a:1"), WriteOptions("first"))
    second, _ = cluster.registry.apply(target, config("a:1"), WriteOptions("first"))
    assert (new, second.object) == (True, first.object)
    refusal = _refusal(cluster.registry.apply, target, config("b:1"), WriteOptions("second"))
    assert (refusal.code, refusal.message) == (
        409,
        'Apply failed with 1 conflict: conflict with "first": .spec.template.spec.containers[name="main"].image',
    )
    forced, _ = cluster.registry.apply(target, config("b:1"), WriteOptions("second"), force=True)
    assert forced.object["metadata"]["generation"] == 2
    assert forced.object["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_finalizers_hold_an_object(cluster: Cluster) -> None:
    """It goes when the last one is taken away; none can be added meanwhile."""
    path = "api/v1/namespaces/default/configmaps"
    cluster.create(path, "one", metadata={"finalizers": ["example.org/hold"]})
    target = cluster.at(f"{path}/one")
    item, gone = cluster.registry.delete(target)
    assert (gone, bool(item.object["metadata"]["deletionTimestamp"])) == (False, True)
    refusal = _refusal(_patch, cluster, f"{path}/one", {"metadata": {"finalizers": ["example.org/hold", "b.org/x"]}})
    assert "no new finalizers can be added" in refusal.message
    _patch(cluster, f"{path}/one", {"metadata": {"finalizers": None}})
    assert _refusal(cluster.registry.item, target).code == 404


def test_a_pod_on_a_node_waits_for_its_kubelet(cluster: Cluster) -> None:
    """With grace it is marked; grace 0 removes it; one that no node has goes at once."""
    cluster.create(PODS, "bound", spec={**POD, "nodeName": "n1"})
    bound = cluster.at(f"{PODS}/bound")
    item, gone = cluster.registry.delete(bound)
    assert (gone, item.object["metadata"]["deletionGracePeriodSeconds"]) == (False, 30)
    assert cluster.registry.delete(bound, DeleteOptions(grace_seconds=0))[1]
    cluster.create(PODS, "free", spec=POD)
    assert cluster.registry.delete(cluster.at(f"{PODS}/free"))[1]


def test_preconditions_of_a_delete(cluster: Cluster) -> None:
    """A uid or resourceVersion that is not the object's stops the deletion."""
    made = cluster.create(PODS, "one", spec=POD)
    target = cluster.at(f"{PODS}/one")
    assert _refusal(cluster.registry.delete, target, DeleteOptions(uid="other")).code == 409
    assert _refusal(cluster.registry.delete, target, DeleteOptions(resource_version="1")).code == 409
    assert cluster.registry.delete(target, DeleteOptions(uid=made["metadata"]["uid"]))[1]


def test_propagation_leaves_its_mark_for_the_garbage_collector(cluster: Cluster) -> None:
    """Foreground and Orphan are finalizers; a Job's pods are orphaned unless the caller says otherwise."""
    spec = {"template": {"spec": {**POD, "restartPolicy": "Never"}}}
    jobs = "apis/batch/v1/namespaces/default/jobs"
    for name, policy, finalizers in (("a", "", ["orphan"]), ("b", "Foreground", ["foregroundDeletion"])):
        cluster.create(jobs, name, spec=dict(spec))
        item, _ = cluster.registry.delete(cluster.at(f"{jobs}/{name}"), DeleteOptions(policy=policy))
        assert item.object["metadata"]["finalizers"] == finalizers
    cluster.create(jobs, "c", spec=dict(spec))
    assert cluster.registry.delete(cluster.at(f"{jobs}/c"), DeleteOptions(policy="Background"))[1]


def test_a_namespace_is_emptied_before_it_goes(cluster: Cluster) -> None:
    """Terminating refuses new objects; finalize removes the last hold."""
    cluster.create("api/v1/namespaces", "room")
    target = cluster.at("api/v1/namespaces/room")
    item, gone = cluster.registry.delete(target)
    assert (gone, item.object["status"]["phase"]) == (False, "Terminating")
    refusal = _refusal(cluster.create, "api/v1/namespaces/room/configmaps", "x")
    assert (refusal.code, refusal.details["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    body = item.copy()
    body["spec"]["finalizers"] = []
    cluster.registry.update(cluster.at("api/v1/namespaces/room/finalize"), body)
    assert _refusal(cluster.registry.item, target).code == 404
    assert _refusal(cluster.registry.delete, cluster.at("api/v1/namespaces/default")).code == 403


def test_a_runtime_class_places_its_pods(cluster: Cluster) -> None:
    """Node selector and tolerations of the class are added to the pod."""
    scheduling = {"nodeSelector": {"gpu": "true"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    cluster.create("apis/node.k8s.io/v1/runtimeclasses", "nvidia", handler="nvidia", scheduling=scheduling)
    pod = cluster.create(PODS, "one", spec={**POD, "runtimeClassName": "nvidia"})
    assert pod["spec"]["nodeSelector"] == {"gpu": "true"}
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]


def test_services_get_addresses(cluster: Cluster) -> None:
    """A cluster IP of its own, a node port where asked; a taken node port is refused."""
    path = "api/v1/namespaces/default/services"
    first = cluster.create(path, "a", spec={"ports": [{"port": 80}]})
    second = cluster.create(path, "b", spec={"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]})
    assert first["spec"]["clusterIP"] != second["spec"]["clusterIP"]
    assert first["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    refusal = _refusal(
        lambda: cluster.create(path, "c", spec={"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]})
    )
    assert "provided port is already allocated" in refusal.message


def test_a_job_selects_its_own_pods(cluster: Cluster) -> None:
    """Selector and template labels come from the job's uid."""
    template = {"spec": {**POD, "restartPolicy": "Never"}}
    job = cluster.create("apis/batch/v1/namespaces/default/jobs", "one", spec={"template": template})
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/controller-uid"] == job["metadata"]["uid"]
    assert job["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_events_are_the_same_objects_in_both_of_their_groups(cluster: Cluster) -> None:
    """Written through core/v1, read through events.k8s.io/v1 under its field names."""
    about = {"kind": "Pod", "name": "x", "namespace": "default"}
    cluster.create("api/v1/namespaces/default/events", "e1", involvedObject=about, message="hello", count=2)
    event = cluster.get("apis/events.k8s.io/v1/namespaces/default/events/e1")
    assert (event["note"], event["regarding"]["name"], event["deprecatedCount"]) == ("hello", "x", 2)
    assert event["apiVersion"] == "events.k8s.io/v1"
