"""Builders of readings, and of an informer cache."""

from __future__ import annotations

from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, ObservedState
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.reconcile.plan import ClusterPlan
from tests.components.builders import nfd_labels
from tests.planning.builders import Stack


class FakeCache(InformerCache):
    """The objects that a test puts there; it takes further scopes."""

    def __init__(self, objects: dict[ObjectRef, Manifest]) -> None:
        self.objects = objects

    def list(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        kind = what.kind if isinstance(what, Scope) else what
        fields = what.field_selector if isinstance(what, Scope) else ""
        name = fields.partition(",")[0].removeprefix("metadata.name=")
        return {ref: each for ref, each in self.objects.items() if ref.type == kind and name in {"", ref.name}}

    def new_reader(self) -> InformerCache:
        return self

    def watch(self, *_: Scope) -> None:
        """Have all objects already."""


def node_object(name: str, labels: dict[str, str] | None = None, version: int = 1) -> Manifest:
    found = nfd_labels() if labels is None else labels
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": str(version), "labels": found}
    allocatable = {"nvidia.com/gpu": "8" if name == "h100-1" else "1"}
    info = {"containerRuntimeVersion": "containerd://1.7.27", "bootID": f"boot-of-{name}"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info, "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def reading(chosen: Inventory, facts: ClusterFacts) -> ClusterPlan:
    """Return the plan of an empty cluster."""
    context, desired = prepare(chosen, facts)
    observed = ObservedState(cluster="c", facts=facts)
    return ClusterPlan(context, desired, observed, plan(context, desired, observed))


def reading_of(stack: Stack) -> ClusterPlan:
    draft = plan(stack.context, stack.desired, stack.observed)
    return ClusterPlan(stack.context, stack.desired, stack.observed, draft)
