"""Which nodes a pod may run on by selectors, affinity and taints, and the view of nodes that decides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.informer import Informer

Taint = Mapping[str, Any]
PodSpec = Mapping[str, Any]
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What placement reads of a node; replaced only when that changes, so identity means equality."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Mapping[str, str]


def view_node(node: Object) -> NodeView:
    """Return the part of a node that placement depends on."""
    spec, status = node.get("spec") or {}, objects.status(node)
    return NodeView(
        name=objects.name(node),
        labels=objects.labels(node),
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=status.get("allocatable") or status.get("capacity") or {},
    )


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Whether one toleration tolerates the taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def find_untolerated(
    tolerations: Sequence[Mapping[str, Any]],
    taints: Iterable[Taint],
    effects: Iterable[str] = (NO_SCHEDULE, NO_EXECUTE),
) -> Taint | None:
    """Return the first taint of these effects that no toleration tolerates."""
    considered = tuple(effects)
    for taint in taints:
        if taint["effect"] in considered and not any(tolerates(one, taint) for one in tolerations):
            return taint
    return None


def required_terms(spec: PodSpec) -> list[Mapping[str, Any]] | None:
    """Return the terms of the required node affinity; None if there is none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or []


def matches_node(spec: PodSpec, view: NodeView) -> bool:
    """Whether the pod's nodeSelector and required node affinity admit the node; an empty term admits none."""
    if not objects.includes_labels(spec.get("nodeSelector"), view.labels):
        return False
    terms = required_terms(spec)
    if terms is None:
        return True
    names = {"metadata.name": view.name}
    for term in terms:
        demands = [(one, view.labels) for one in term.get("matchExpressions") or ()]
        demands += [(one, names) for one in term.get("matchFields") or ()]
        if demands and all(objects.requirement_matches(one, values) for one, values in demands):
            return True
    return False


def pinned_nodes(spec: PodSpec) -> frozenset[str] | None:
    """Return the node names that the required affinity is limited to; None if it is not by name."""
    names: set[str] = set()
    for term in required_terms(spec) or ({},):
        fields = [one for one in term.get("matchFields") or () if one["operator"] == "In"]
        if not fields:
            return None
        names.update(fields[0].get("values") or ())
    return frozenset(names)


ViewChange = Callable[[NodeView | None, NodeView | None], None]


class NodeViews:
    """Node name -> view of the node, kept up to date.

    Attributes:
        views: Read-only for users.
    """

    def __init__(self, nodes: Informer) -> None:
        """Follow the informer of nodes."""
        self.views: dict[str, NodeView] = {}
        self._handlers: list[ViewChange] = []
        nodes.on_change(self._on_change)

    def on_change(self, handler: ViewChange) -> None:
        """Call ``handler(before, after)``; known nodes are reported at once."""
        self._handlers.append(handler)
        for view in tuple(self.views.values()):
            handler(None, view)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        name, view = objects.name(new or old or {}), view_node(new) if new else None
        before = self.views.get(name)
        if before == view:
            return
        if view is None:
            del self.views[name]
        else:
            self.views[name] = view
        for handler in self._handlers:
            handler(before, view)
