"""For which nodes an adoption waits until Node Feature Discovery has seen them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.adopt import runner
from gpu_provision.adopt.discovery import DRIVER_APP, REVISION
from gpu_provision.adopt.plan import Disposition
from gpu_provision.adopt.runner import AdoptionRunner, check, required_permissions, unseen_nodes
from gpu_provision.components import labels, nfd
from gpu_provision.components.nfd import NODE_FEATURE
from gpu_provision.kube.client import Cluster, connect
from gpu_provision.model.cluster import Manifest, ObjectRef, Permission, by_ref
from gpu_provision.model.findings import Finding, Refused, RunFailed
from gpu_provision.rbac import review
from gpu_provision.reconcile.session import Session
from tests.adopt.builders import adopted, found
from tests.adopt.chart import NAMESPACE
from tests.sandbox.apiserver.conftest import Running

READY = {"conditions": [{"type": "Ready", "status": "True"}]}

CREATING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}],
}


def feature(node: str) -> Manifest:
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": node, "namespace": "nfd", "labels": {"nfd.node.kubernetes.io/node-name": node}},
        "spec": {"features": {}},
    }


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
    assert unseen_nodes(["b", "a"], by_ref([feature("a")]), by_ref(pods)) == {"b": reason}
    assert unseen_nodes(["a"], by_ref([feature("a")]), by_ref(pods)) == {}


LEFT_BEHIND = {
    "apiVersion": REVISION.api_version,
    "kind": REVISION.kind,
    "metadata": {"name": "old", "namespace": NAMESPACE, "uid": "old", "labels": {"app": DRIVER_APP}},
}


@dataclass
class Recorder:
    """A cluster that notes what is deleted, in order; the operator has stopped, and its driver DaemonSet is gone."""

    deleted: list[str]

    def list(self, kind: object, **_: object) -> Any:
        """Return the revision."""
        return SimpleNamespace(items=[LEFT_BEHIND] if kind == REVISION else [])

    def merge(self, ref: ObjectRef, _: object) -> None:
        """Take the scale of the operator."""
        assert ref.name == "gpu-operator"

    def delete(self, ref: ObjectRef, **_: object) -> None:
        """Note it."""
        self.deleted.append(ref.kind)

    def get(self, _: ObjectRef) -> Manifest | None:
        """Return nothing: all is deleted at once."""
        return None


def test_revisions_go_before_objects_of_their_namespace(tmp_path: Path) -> None:
    """And the ClusterPolicy goes last: it says that the adoption is not over."""
    adoption = adopted(tmp_path, found())
    removed = tuple(item for item in adoption.of(Disposition.REMOVED) if "node-feature-discovery" not in item.ref.name)
    calls = Recorder([])
    AdoptionRunner(cast("Cluster", calls)).finalize(replace(adoption, objects=removed), lambda: found(policies=()))
    assert (calls.deleted[0], calls.deleted[-2], calls.deleted[-1]) == (REVISION.kind, "Deployment", "ClusterPolicy")


def test_the_wait_for_discovery_asks_nothing_again_and_again(tmp_path: Path, server: Running) -> None:
    """Two LISTs and two watches, however long it takes; each message names the nodes that are left."""
    user, ours = connect(str(server.server.kubeconfig)), connect(str(server.server.kubeconfig))
    space = adopted(tmp_path, found()).discovery
    for made in (*nfd.crds(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}):
        user.create(made)
    told: list[str] = []
    nodes = iter(["gpu-2", "gpu-1"])

    def publish(message: str) -> None:
        told.append(message.partition(";")[0])
        user.create(_feature(next(nodes), space))

    waiting = replace(adopted(tmp_path, found()), targets=("gpu-1", "gpu-2"))
    AdoptionRunner(ours, publish)._await_discovery(waiting)
    sees = "waiting for Node Feature Discovery to see gpu-1 (no worker pod)"
    assert told == [f"{sees}, gpu-2 (no worker pod)", sees]
    assert ours.requests == 4


def test_the_wait_for_discovery_has_a_deadline(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart's stays, as its labels would go with it."""
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.0)
    waiting = replace(adopted(tmp_path, found()), targets=("gpu-9",))
    with pytest.raises(RunFailed, match="gpu-9"):
        AdoptionRunner(connect(str(server.server.kubeconfig)))._await_discovery(waiting)


def test_rights_to_follow_discovery_are_asked_for_before(tmp_path: Path) -> None:
    """Only if the chart's is replaced."""
    there = found()
    watch = Permission("watch", "nfd.k8s-sigs.io", "nodefeatures", "node-feature-discovery")
    assert watch in set(required_permissions(adopted(tmp_path, there)))
    without = {ref: item for ref, item in there.objects.items() if ref not in there.discovery}
    assert watch not in set(required_permissions(adopted(tmp_path, found(objects=without))))


def _feature(node: str, space: str) -> Manifest:
    metadata = {"name": node, "namespace": space, "labels": {"nfd.node.kubernetes.io/node-name": node}}
    return {"apiVersion": NODE_FEATURE.api_version, "kind": NODE_FEATURE.kind, "metadata": metadata, "spec": {}}


def session(*refusals: Finding) -> Session:
    made: Any = SimpleNamespace(
        refusals=lambda: refusals, missing_permissions=lambda: None, cluster=None, inventory=None
    )
    return cast("Session", made)


def conflict(where: str) -> Finding:
    return Finding(code="GP304", what="another field manager owns it", where=where)


@pytest.fixture(autouse=True)
def everything_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "missing_finding", lambda *_: None)


def test_a_field_of_an_object_that_changes_hands_is_no_obstacle(tmp_path: Path) -> None:
    """The operator's entry on each of its objects is what the adoption takes over."""
    check(session(conflict("ConfigMap gpu-operator/nvidia-driver-startup-probe")), adopted(tmp_path, found()))


def test_a_field_of_somebody_elses_object_is_one(tmp_path: Path) -> None:
    """Otherwise the operator would be stopped, and the apply could not take its place."""
    theirs = conflict("ServiceAccount node-feature-discovery/node-feature-discovery")
    with pytest.raises(RunFailed) as refused:
        check(session(theirs), adopted(tmp_path, found()))
    assert refused.value.findings == (theirs,)


def test_rights_are_asked_for_before_the_operator_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the apply, and those to write what is the operator's."""
    asked: list[Any] = []

    def missing(_cluster: object, _inventory: object, wanted: Any, *options: str) -> Finding:
        assert options == ("--adopt",), "what prints them"
        asked.extend(wanted)
        return Finding(code="GP310", what="lacks a permission")

    monkeypatch.setattr(review, "missing_finding", missing)
    with pytest.raises(Refused):
        check(session(), adopted(tmp_path, found()))
    wanted = {(one.verb, one.resource, one.name) for one in asked}
    assert ("patch", "deployments", "gpu-operator") in wanted
    assert ("delete", "clusterpolicies", "cluster-policy") in wanted
    assert ("patch", "daemonsets", "nvidia-container-toolkit-daemonset") in wanted
