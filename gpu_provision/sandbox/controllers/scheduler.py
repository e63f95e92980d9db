"""The scheduler: binds pods to the least loaded node that fits, or says why none does."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, PODS, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.controllers.node_filters import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    NodeViews,
    find_untolerated,
    matches_node,
    pinned_nodes,
    tolerates,
)
from gpu_provision.sandbox.objects import Amounts, ConditionUpdate, Key, amounts, combine_amounts

_NAME = "default-scheduler"
_HOSTNAME = "kubernetes.io/hostname"
_UNSCHEDULABLE = {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}
_NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
_REFRESH_SECONDS = 1.0
_UNKNOWN = NodeView("", {}, (), unschedulable=True, allocatable={})


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What a pod takes of a node, and which neighbors it refuses."""

    uid: str
    namespace: str
    labels: Mapping[str, str]
    requests: Amounts
    refuses: tuple[Mapping[str, Any], ...]


def read_demand(pod: Object) -> PodDemand:
    """Read a pod."""
    spec = pod["spec"]
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    terms = anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    refuses = tuple(term for term in terms if term.get("topologyKey") == _HOSTNAME)
    return PodDemand(objects.uid(pod), objects.namespace(pod), objects.labels(pod), requests(spec), refuses)


def requests(spec: Mapping[str, Any]) -> Amounts:
    """Return what a pod requests: the larger of its containers together and any init container."""

    def of_container(container: Mapping[str, Any]) -> Amounts:
        resources = container.get("resources") or {}
        return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})

    together = combine_amounts(map(of_container, spec.get("containers") or ()), operator.add)
    return {**combine_amounts([together, *map(of_container, spec.get("initContainers") or ())], max), "pods": 1}


def refuses(pod: PodDemand, other: PodDemand) -> bool:
    """Whether ``pod`` may not share a host with ``other``."""
    for term in pod.refuses:
        everywhere = term.get("namespaceSelector") == {}
        namespaces = term.get("namespaces") or ([] if everywhere else [pod.namespace])
        meets = everywhere or other.namespace in namespaces
        if meets and objects.matches_selector(term.get("labelSelector"), other.labels):
            return True
    return False


@dataclass(eq=False, slots=True)
class NodeLoad:
    """A node and what runs on it; pods may be bound to one before it is known."""

    view: NodeView = _UNKNOWN
    allocatable: Amounts = field(default_factory=dict)
    pods: dict[str, PodDemand] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)


def find_obstacles(spec: Mapping[str, Any], pod: PodDemand, load: NodeLoad) -> list[str]:
    """Return why the pod does not fit on the node, in the scheduler's words; empty if it fits.

    As in kube-scheduler, the first check that fails speaks.
    """
    view = load.view
    tolerations: Sequence[Mapping[str, Any]] = spec.get("tolerations") or ()
    if view.unschedulable and not any(tolerates(one, _UNSCHEDULABLE) for one in tolerations):
        return ["node(s) were unschedulable"]
    taint = find_untolerated(tolerations, view.taints, (NO_SCHEDULE, NO_EXECUTE))
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not matches_node(spec, view):
        return [_NOT_SELECTED]
    scarce = [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in pod.requests.items()
        if amount and amount > load.allocatable.get(name, 0) - load.used[name]
    ]
    if scarce:
        return scarce
    if any(refuses(pod, other) for other in load.pods.values() if pod.refuses):
        return ["node(s) didn't match pod anti-affinity rules"]
    is_refused = any(refuses(other, pod) for other in load.pods.values() if other.refuses)
    return ["node(s) didn't satisfy existing pods anti-affinity rules"] if is_refused else []


def load_key(pod: PodDemand, load: NodeLoad) -> tuple[float, int, str]:
    """Return a key that sorts the least loaded node first."""
    left = [
        (load.allocatable[name] - load.used[name] - pod.requests.get(name, 0)) / load.allocatable[name]
        for name in ("cpu", "memory")
        if load.allocatable.get(name)
    ]
    return -sum(left) / max(len(left), 1), len(load.pods), load.view.name


def explain(nodes: int, reasons: Iterable[str]) -> str:
    """Return the message of a pod that fits nowhere, as in "0/5 nodes are available: 5 Insufficient cpu."."""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(counted)}."


class NodeLoads:
    """The load of every node, and where each pod is counted.

    Attributes:
        known: Node name -> load, of the nodes that exist.
        place: Pod uid -> the node that it is counted on.
    """

    def __init__(self) -> None:
        """Start without nodes."""
        self.known: dict[str, NodeLoad] = {}
        self.place: dict[str, str] = {}
        self._all: defaultdict[str, NodeLoad] = defaultdict(NodeLoad)

    def add(self, pod: PodDemand, node: str) -> None:
        """Count a pod on a node, and no longer on another one."""
        self.remove(pod.uid)
        self.place[pod.uid] = node
        self._all[node].pods[pod.uid] = pod
        self._all[node].used.update(pod.requests)

    def remove(self, uid: str) -> str:
        """Count a pod no more; return its node, empty if it had none."""
        node = self.place.pop(uid, "")
        if node:
            load = self._all[node]
            load.used.subtract(load.pods.pop(uid).requests)
        return node

    def update(self, before: NodeView | None, after: NodeView | None) -> None:
        """Take in a changed, new or lost node."""
        if after is not None:
            load = self.known[after.name] = self._all[after.name]
            load.view, load.allocatable = after, amounts(after.allocatable)
        elif before is not None:
            del self.known[before.name]


class Scheduler(QueueController[Key]):
    """Binds unbound pods; a pod that fits nowhere waits until a node changes in its favor."""

    name = "scheduler"
    component = _NAME
    watches = (NODES, PODS)
    workers = 8

    def __init__(self, cluster: ControllerManager, views: NodeViews) -> None:
        """Follow pods and nodes."""
        super().__init__(cluster)
        self._loads = NodeLoads()
        self._parked: dict[Key, tuple[Object, PodDemand]] = {}
        self._pods = cluster.informer(PODS)
        views.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None or objects.is_finished(new):
            gone = new or old or {}
            self._parked.pop(objects.key_of(gone), None)
            self._requeue_fitting(self._loads.remove(objects.uid(gone)))
        elif objects.node_of(new):
            self._parked.pop(objects.key_of(new), None)
            if old is None or not objects.node_of(old):
                self._loads.add(read_demand(new), objects.node_of(new))
        elif old is None or (old["spec"], objects.labels(old)) != (new["spec"], objects.labels(new)):
            self.queue.add(objects.key_of(new))

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        self._loads.update(before, after)
        if after is not None:
            self._requeue_fitting(after.name)
        if before is None or after is None:
            for key in self._parked:
                self.queue.add_after(key, _REFRESH_SECONDS)

    def _requeue_fitting(self, node: str) -> None:
        load = self._loads.known.get(node)
        for key, (pod, demand) in self._parked.items():
            if load is not None and not find_obstacles(pod["spec"], demand, load):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Bind one pod, or park it and say why. Raises ApiError if the binding is refused."""
        pod = self._pods.objects.get(key)
        if pod is None or not _is_ours(pod) or objects.uid(pod) in self._loads.place:
            self._parked.pop(key, None)
            return
        demand, loads = read_demand(pod), self._loads.known
        pinned = pinned_nodes(pod["spec"])
        candidates = list(loads.values()) if pinned is None else [loads[name] for name in pinned if name in loads]
        reasons = [_NOT_SELECTED] * (len(loads) - len(candidates))
        fitting: list[NodeLoad] = []
        for load in candidates:
            found = find_obstacles(pod["spec"], demand, load)
            reasons += found
            if not found:
                fitting.append(load)
        if fitting:
            await self._bind(pod, demand, min(fitting, key=lambda load: load_key(demand, load)).view.name)
            return
        self._parked[key] = (pod, demand)
        message = explain(len(loads), reasons)
        self.event(pod, "FailedScheduling", message, warning=True)
        update = ConditionUpdate("PodScheduled", "False", "Unschedulable", message)
        conditions = objects.set_conditions(pod, objects.now(), update)
        await self.cluster.write_status(PODS, pod, {"conditions": conditions})

    async def _bind(self, pod: Object, demand: PodDemand, node: str) -> None:
        self._parked.pop(objects.key_of(pod), None)
        self._loads.add(demand, node)
        try:
            await self.cluster.api.bind(objects.name(pod), node, objects.namespace(pod))
        except BaseException:
            self._loads.remove(demand.uid)
            raise
        message = f"Successfully assigned {objects.namespace(pod)}/{objects.name(pod)} to {node}"
        self.event(pod, "Scheduled", message)


def _is_ours(pod: Object) -> bool:
    return not objects.node_of(pod) and objects.is_active(pod) and pod["spec"].get("schedulerName", _NAME) == _NAME
