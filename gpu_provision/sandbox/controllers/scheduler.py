"""The scheduler: binds pods to the least loaded node that fits, or says why none does."""

from __future__ import annotations

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
from gpu_provision.sandbox.objects import Amounts, ConditionUpdate, Key, add_amounts, amounts, max_amounts

HOSTNAME = "kubernetes.io/hostname"
_UNSCHEDULABLE = {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}


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
    return PodDemand(
        uid=objects.uid(pod),
        namespace=objects.namespace(pod),
        labels=objects.labels(pod),
        requests=requests(spec),
        refuses=_refusals(spec),
    )


def requests(spec: Mapping[str, Any]) -> Amounts:
    """Return what a pod requests: the larger of its containers together and any init container."""
    together = add_amounts(map(_container_requests, spec.get("containers") or ()))
    steps = map(_container_requests, spec.get("initContainers") or ())
    return add_amounts([max_amounts([together, *steps]), {"pods": 1}])


def _container_requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _refusals(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    terms = anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return tuple(term for term in terms if term.get("topologyKey") == HOSTNAME)


def refuses(pod: PodDemand, other: PodDemand) -> bool:
    """Whether ``pod`` may not share a host with ``other``."""
    return any(_refusal_meets(term, pod.namespace, other) for term in pod.refuses)


def _refusal_meets(term: Mapping[str, Any], namespace: str, other: PodDemand) -> bool:
    everywhere = term.get("namespaceSelector") == {}
    namespaces = term.get("namespaces") or ([] if everywhere else [namespace])
    if not everywhere and other.namespace not in namespaces:
        return False
    return objects.matches_selector(term.get("labelSelector"), other.labels)


_UNKNOWN = NodeView("", {}, (), unschedulable=True, allocatable={})


@dataclass(eq=False, slots=True)
class NodeLoad:
    """A node and what runs on it; ``put`` and ``remove`` keep the sums."""

    view: NodeView = _UNKNOWN
    allocatable: Amounts = field(default_factory=dict)
    pods: dict[str, PodDemand] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)

    def put(self, pod: PodDemand) -> None:
        """Count a pod, once."""
        self.remove(pod.uid)
        self.pods[pod.uid] = pod
        self.used.update(pod.requests)

    def remove(self, uid: str) -> None:
        """Count a pod no more."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.used.subtract(pod.requests)


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
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _occupied(pod, load)


def _occupied(pod: PodDemand, load: NodeLoad) -> list[str]:
    scarce = [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in pod.requests.items()
        if amount and amount > load.allocatable.get(name, 0) - load.used[name]
    ]
    if scarce:
        return scarce
    if any(refuses(pod, other) for other in load.pods.values() if pod.refuses):
        return ["node(s) didn't match pod anti-affinity rules"]
    if any(refuses(other, pod) for other in load.pods.values() if other.refuses):
        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


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


_NAME = "default-scheduler"
_REFRESH_SECONDS = 1.0


class NodeLoads:
    """The load of every node, and where each pod is counted.

    Attributes:
        known: Node name -> load, of the nodes that exist; pods may be bound to one before it is known.
    """

    def __init__(self) -> None:
        """Start without nodes."""
        self.known: dict[str, NodeLoad] = {}
        self._all: defaultdict[str, NodeLoad] = defaultdict(NodeLoad)
        self._place: dict[str, str] = {}

    def has(self, uid: str) -> bool:
        """Whether the pod is counted on some node."""
        return uid in self._place

    def place(self, pod: PodDemand, node: str) -> None:
        """Count a pod on a node."""
        self.remove(pod.uid)
        self._place[pod.uid] = node
        self._all[node].put(pod)

    def remove(self, uid: str) -> str:
        """Count a pod no more; return its node, empty if it had none."""
        node = self._place.pop(uid, "")
        if node:
            self._all[node].remove(uid)
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

    @property
    def component(self) -> str:
        """The name under which events are recorded."""
        return _NAME

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None or objects.is_finished(new):
            gone = new or old
            if gone is not None:
                self._parked.pop(objects.key_of(gone), None)
                self._freed(self._loads.remove(objects.uid(gone)))
            return
        if not objects.node_of(new):
            if old is None or _changed_for_scheduling(old, new):
                self.queue.add(objects.key_of(new))
            return
        self._parked.pop(objects.key_of(new), None)
        if old is None or not objects.node_of(old):
            self._loads.place(read_demand(new), objects.node_of(new))

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        self._loads.update(before, after)
        if after is not None:
            self._freed(after.name)
        if before is None or after is None:
            for key in self._parked:
                self.queue.add_after(key, _REFRESH_SECONDS)

    def _freed(self, node: str) -> None:
        load = self._loads.known.get(node)
        if load is None:
            return
        for key, (pod, demand) in self._parked.items():
            if not find_obstacles(pod["spec"], demand, load):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Bind one pod, or park it and say why. Raises ApiError if the binding is refused."""
        pod = self._pods.objects.get(key)
        if pod is None or not _is_ours(pod) or self._loads.has(objects.uid(pod)):
            self._parked.pop(key, None)
            return
        demand = read_demand(pod)
        reasons: list[str] = []
        fitting: list[NodeLoad] = []
        for load in self._candidates(pod, reasons):
            found = find_obstacles(pod["spec"], demand, load)
            reasons += found
            if not found:
                fitting.append(load)
        if fitting:
            chosen = min(fitting, key=lambda load: load_key(demand, load))
            await self._bind(pod, demand, chosen.view.name)
            return
        self._parked[key] = (pod, demand)
        await self._explain(pod, explain(len(self._loads.known), reasons))

    def _candidates(self, pod: Object, reasons: list[str]) -> list[NodeLoad]:
        loads = self._loads.known
        pinned = pinned_nodes(pod["spec"])
        if pinned is None:
            return list(loads.values())
        candidates = [loads[name] for name in pinned if name in loads]
        reasons += ["node(s) didn't match Pod's node affinity/selector"] * (len(loads) - len(candidates))
        return candidates

    async def _bind(self, pod: Object, demand: PodDemand, node: str) -> None:
        self._parked.pop(objects.key_of(pod), None)
        self._loads.place(demand, node)
        try:
            await self.cluster.api.bind(objects.name(pod), node, objects.namespace(pod))
        except BaseException:
            self._loads.remove(demand.uid)
            raise
        message = f"Successfully assigned {objects.namespace(pod)}/{objects.name(pod)} to {node}"
        self.event(pod, "Scheduled", message)

    async def _explain(self, pod: Object, message: str) -> None:
        self.event(pod, "FailedScheduling", message, warning=True)
        conditions = objects.status(pod).get("conditions") or []
        wanted = objects.set_condition(
            conditions, ConditionUpdate("PodScheduled", "False", "Unschedulable", message), objects.now()
        )
        await self.cluster.write_status(PODS, pod, {"conditions": wanted})


def _is_ours(pod: Object) -> bool:
    spec = pod["spec"]
    return not objects.node_of(pod) and objects.is_active(pod) and spec.get("schedulerName", _NAME) == _NAME


def _changed_for_scheduling(old: Object, new: Object) -> bool:
    return old["spec"] != new["spec"] or objects.labels(old) != objects.labels(new)
