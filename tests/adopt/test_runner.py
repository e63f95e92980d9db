"""The wait for Node Feature Discovery, permissions, conflicts, and the order of deletions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.adopt import runner
from gpu_provision.adopt.discovery import DRIVER_APP, REVISION
from gpu_provision.adopt.plan import Disposition
from gpu_provision.adopt.runner import AdoptionRunner, check, nodes_without_features, required_permissions
from gpu_provision.components import labels, nfd
from gpu_provision.components.nfd import NODE_FEATURE
from gpu_provision.inventory import load
from gpu_provision.kube.client import connect
from gpu_provision.model.cluster import Manifest, Permission, index_by_ref
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError
from gpu_provision.rbac import review
from gpu_provision.rbac.permissions import for_adopt
from gpu_provision.rbac.roles import grants, rules_of
from tests.adopt.builders import adoption_of, operator_install
from tests.adopt.chart import NAMESPACE
from tests.sandbox.apiserver.conftest import Running

READY = {"conditions": [{"type": "Ready", "status": "True"}]}

CREATING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}],
}


def feature(node: str, space: str = "nfd") -> Manifest:
    metadata = {"name": node, "namespace": space, "labels": {"nfd.node.kubernetes.io/node-name": node}}
    return {"apiVersion": NODE_FEATURE.api_version, "kind": NODE_FEATURE.kind, "metadata": metadata, "spec": {}}


def worker(node: str, status: dict[str, Any], *, owner: str = "DaemonSet", component: str = "nfd") -> Manifest:
    metadata = {
        "name": f"worker-{node}",
        "namespace": "nfd",
        "labels": {labels.COMPONENT: component},
        "ownerReferences": [{"kind": owner, "name": "any"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}, "status": status}


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((), "no worker pod"),
        ((worker("b", READY),), "worker nfd/worker-b has published nothing"),
        ((worker("b", CREATING),), "worker nfd/worker-b: worker: ImagePullBackOff: no"),
        ((worker("b", READY, owner="ReplicaSet"),), "no worker pod"),
        ((worker("b", READY, component="gfd"),), "no worker pod"),
    ],
    ids=["nothing runs", "silent", "cannot start", "the master", "another component"],
)
def test_a_node_without_node_feature_is_missing(pods: tuple[Manifest, ...], reason: str) -> None:
    assert nodes_without_features(["b", "a"], index_by_ref([feature("a")]), index_by_ref(pods)) == {"b": reason}
    assert nodes_without_features(["a"], index_by_ref([feature("a")]), index_by_ref(pods)) == {}


LEFT_BEHIND = {
    "apiVersion": REVISION.api_version,
    "kind": REVISION.kind,
    "metadata": {"name": "old", "namespace": NAMESPACE, "uid": "old", "labels": {"app": DRIVER_APP}},
}


def test_revisions_go_before_objects_of_their_namespace(tmp_path: Path) -> None:
    """The ClusterPolicy is last: its absence marks a complete adoption."""
    adoption, deleted = adoption_of(tmp_path, operator_install()), list[str]()
    removed = tuple(
        item for item in adoption.objects_with(Disposition.REMOVED) if "node-feature-discovery" not in item.ref.name
    )
    cluster: Any = SimpleNamespace(
        list=lambda kind, **_: SimpleNamespace(items=[LEFT_BEHIND] if kind == REVISION else []),
        merge_patch=lambda *_: None,  # the scale of the operator, which has stopped
        delete=lambda ref, **_: deleted.append(ref.kind),
        get=lambda _: None,
    )
    AdoptionRunner(cluster).finalize(replace(adoption, objects=removed), lambda: operator_install(policies=()))
    assert (deleted[0], deleted[-2], deleted[-1]) == (REVISION.kind, "Deployment", "ClusterPolicy")


def test_a_driver_is_labelled_once_its_daemonset_is_gone(tmp_path: Path) -> None:
    """A pod that no longer has the labels which its DaemonSet selects would get a successor."""
    adoption, writes = replace(adoption_of(tmp_path, operator_install()), operators=()), list[str]()
    for item in adoption.objects:
        item.live["metadata"]["resourceVersion"] = "1"
    cluster: Any = SimpleNamespace(
        merge_patch=lambda ref, *_: writes.append(f"patch {ref.kind} {ref.name}"),
        patch_labels=lambda ref, *_: writes.append(f"label {ref.kind} {ref.name}"),
        delete=lambda ref, **words: writes.append(f"{'orphan' if words.get('orphan') else 'delete'} {ref.name}"),
        get=lambda _: None,
    )
    AdoptionRunner(cluster).transfer_ownership(adoption)
    steps = ["label Node gpu-1", "orphan nvidia-driver-daemonset", "patch Pod driver-gpu-1"]
    assert [each for each in writes if each in steps] == steps


def test_the_wait_for_discovery_asks_nothing_again_and_again(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two LISTs and two watches in total; each message names the remaining nodes.

    After the deadline the chart's NFD stays, since its labels would go with it.
    """
    user, client = connect(str(server.server.kubeconfig)), connect(str(server.server.kubeconfig))
    space = adoption_of(tmp_path, operator_install()).discovery
    for made in (*nfd.crds(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}):
        user.create(made)
    messages: list[str] = []
    nodes = iter(["gpu-2", "gpu-1"])

    def publish(message: str) -> None:
        messages.append(message.partition(";")[0])
        user.create(feature(next(nodes), space))

    waiting = replace(adoption_of(tmp_path, operator_install()), targets=("gpu-1", "gpu-2"))
    AdoptionRunner(client, publish)._await_discovery(waiting)
    sees = "waiting for Node Feature Discovery to see gpu-1 (no worker pod)"
    assert messages == [f"{sees}, gpu-2 (no worker pod)", sees]
    assert client.requests == 4
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.0)
    with pytest.raises(RunFailedError, match="gpu-9"):
        AdoptionRunner(client)._await_discovery(replace(waiting, targets=("gpu-9",)))


def session(*conflicts: str) -> Any:
    found = [Finding(code="GP304", what="another field manager owns it", where=where) for where in conflicts]
    return SimpleNamespace(refusals=lambda: found, missing_permissions=lambda: None, cluster=None, inventory=None)


THEIRS = "ServiceAccount node-feature-discovery/node-feature-discovery"


def test_a_field_of_another_owners_object_is_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the apply would fail after the operator is stopped. Objects to take over are no obstacle."""
    monkeypatch.setattr(review, "missing_finding", lambda *_: None)
    check(session("ConfigMap gpu-operator/nvidia-driver-startup-probe"), adoption_of(tmp_path, operator_install()))
    with pytest.raises(RunFailedError) as refused:
        check(session(THEIRS), adoption_of(tmp_path, operator_install()))
    assert [each.where for each in refused.value.findings] == [THEIRS]


def test_rights_are_asked_for_before_the_operator_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions of the apply, and for the operator's objects."""
    asked: list[Any] = []

    def missing(_cluster: object, _inventory: object, wanted: Any, *options: str) -> Finding:
        assert options == ("--adopt",), "what prints them"
        asked.extend(wanted)
        return Finding(code="GP310", what="lacks a permission")

    monkeypatch.setattr(review, "missing_finding", missing)
    with pytest.raises(ForbiddenError):
        check(session(), adoption_of(tmp_path, operator_install()))
    wanted = {(one.verb, one.resource, one.name) for one in asked}
    assert ("patch", "deployments", "gpu-operator") in wanted
    assert ("delete", "clusterpolicies", "cluster-policy") in wanted
    assert ("patch", "daemonsets", "nvidia-container-toolkit-daemonset") in wanted


def test_all_that_an_adoption_writes_is_granted(tmp_path: Path) -> None:
    """For all names of the chart; with a watch of NodeFeatures if the inventory replaces the chart's NFD.

    Without Secrets and without rights to escalate.
    """
    there = operator_install()
    done = adoption_of(tmp_path, there)
    granted = for_adopt(load(next(tmp_path.glob("*.yaml"))))
    wanted = set(required_permissions(done))
    assert {one.resource for one in wanted} >= {"clusterroles", "daemonsets", "clusterpolicies", "nodes", "pods"}
    watch = Permission("watch", "nfd.k8s-sigs.io", "nodefeatures", "node-feature-discovery")
    assert watch in wanted
    without = {ref: item for ref, item in there.objects.items() if ref not in there.discovery}
    assert watch not in set(required_permissions(adoption_of(tmp_path, operator_install(objects=without))))
    lacking = {
        one
        for one in wanted
        if not any(
            grants(rule, one) for rule in rules_of({each for each in granted if each.namespace in {"", one.namespace}})
        )
    }
    assert sorted(lacking) == []
    assert {one.resource for one in granted} & {"secrets", "pods/exec", "serviceaccounts/token"} == set()
    assert {one.verb for one in granted} & {"escalate", "bind", "impersonate", "*"} == set()
