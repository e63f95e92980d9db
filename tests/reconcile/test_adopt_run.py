"""The order in which an adoption removes objects: a killed run finds out from them what is left to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.adopt.discovery import DRIVER_APP, NODE_FEATURE, REVISION
from gpu_provision.adopt.plan import Fate
from gpu_provision.components import nfd_crds
from gpu_provision.kube.client import Cluster, connect
from gpu_provision.model.cluster import Manifest, ObjectRef, Permission
from gpu_provision.model.findings import RunFailed
from gpu_provision.reconcile import adopt_run
from gpu_provision.reconcile.adopt_run import Adopting, permissions
from tests.adopt.builders import adopted, found
from tests.adopt.chart import NAMESPACE
from tests.sandbox.apiserver.conftest import Running

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

    orphan = delete

    def get(self, _: ObjectRef) -> Manifest | None:
        """Return nothing: all is deleted at once."""
        return None


def test_revisions_go_before_the_objects_that_name_their_namespace(tmp_path: Path) -> None:
    """And the ClusterPolicy goes last: it says that the adoption is not over."""
    adoption = adopted(tmp_path, found())
    removed = tuple(item for item in adoption.of(Fate.REMOVED) if "node-feature-discovery" not in item.ref.name)
    calls = Recorder([])
    Adopting(cast("Cluster", calls)).finish(replace(adoption, objects=removed), lambda: found(policies=()))
    assert (calls.deleted[0], calls.deleted[-2], calls.deleted[-1]) == (REVISION.kind, "Deployment", "ClusterPolicy")


def test_the_wait_for_discovery_asks_nothing_again_and_again(tmp_path: Path, server: Running) -> None:
    """Two LISTs and two watches, however long it takes; each message names the nodes that are left."""
    user, ours = connect(str(server.server.kubeconfig)), connect(str(server.server.kubeconfig))
    space = adopted(tmp_path, found()).discovery
    for made in (*nfd_crds.crds(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}):
        user.create(made)
    told: list[str] = []
    nodes = iter(["gpu-2", "gpu-1"])

    def publish(message: str) -> None:
        told.append(message.partition(";")[0])
        user.create(_feature(next(nodes), space))

    waiting = replace(adopted(tmp_path, found()), targets=("gpu-1", "gpu-2"))
    Adopting(ours, publish)._await_discovery(waiting)
    sees = "Node Feature Discovery has yet to see gpu-1 (no worker pod)"
    assert told == [f"{sees}, gpu-2 (no worker pod)", sees]
    assert ours.requests == 4


def test_the_wait_for_discovery_has_a_deadline(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart's stays, as its labels would go with it."""
    monkeypatch.setattr(adopt_run, "WAIT_SECONDS", 0.0)
    waiting = replace(adopted(tmp_path, found()), targets=("gpu-9",))
    with pytest.raises(RunFailed, match="gpu-9"):
        Adopting(connect(str(server.server.kubeconfig)))._await_discovery(waiting)


def test_rights_to_follow_discovery_are_asked_for_before(tmp_path: Path) -> None:
    """Only if the chart's is replaced."""
    there = found()
    watch = Permission("watch", "nfd.k8s-sigs.io", "nodefeatures", "node-feature-discovery")
    assert watch in set(permissions(adopted(tmp_path, there)))
    without = {ref: item for ref, item in there.objects.items() if ref not in there.discovery}
    assert watch not in set(permissions(adopted(tmp_path, found(objects=without))))


def _feature(node: str, space: str) -> Manifest:
    metadata = {"name": node, "namespace": space, "labels": {"nfd.node.kubernetes.io/node-name": node}}
    return {"apiVersion": NODE_FEATURE.api_version, "kind": NODE_FEATURE.kind, "metadata": metadata, "spec": {}}
