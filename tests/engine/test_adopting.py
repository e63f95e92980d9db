"""The order in which an adoption removes objects: a killed run finds out from them what is left to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpu_provision.adoption.found import DRIVER_APP, REVISION
from gpu_provision.adoption.plan import Fate
from gpu_provision.cluster.client import Cluster
from gpu_provision.engine.adopting import Adopting
from gpu_provision.model.cluster import Manifest, ObjectRef
from tests.adoption.builders import adopted, found
from tests.adoption.chart import NAMESPACE

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
