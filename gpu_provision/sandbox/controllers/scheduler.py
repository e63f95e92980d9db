"""The scheduler: binds pods to the least loaded node that fits, or says why none does."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, scheduling, timestamps
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.fitting import NodeView, pinned_nodes
from gpu_provision.sandbox.controllers.node_views import NodeViews
from gpu_provision.sandbox.controllers.objects import Condition
from gpu_provision.sandbox.controllers.resources import NODES, PODS
from gpu_provision.sandbox.controllers.scheduling import Demand, NodeLoad
from gpu_provision.sandbox.informer import Key

_NAME = "default-scheduler"
_REFRESH_SECONDS = 1.0


class Ledger:
    """Node name -> load, and where each pod is counted."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.loads: dict[str, NodeLoad] = {}
        self._place: dict[str, str] = {}
        self._waiting: dict[str, dict[str, Demand]] = {}

    def has(self, uid: str) -> bool:
        """Whether the pod is counted on some node."""
        return uid in self._place

    def place(self, pod: Demand, node: str) -> None:
        """Count a pod on a node, which may not be known yet."""
        self.remove(pod.uid)
        self._place[pod.uid] = node
        load = self.loads.get(node)
        if load is None:
            self._waiting.setdefault(node, {})[pod.uid] = pod
        else:
            load.put(pod)

    def remove(self, uid: str) -> str:
        """Count a pod no more; return its node, empty if it had none."""
        node = self._place.pop(uid, "")
        if node in self.loads:
            self.loads[node].remove(uid)
        self._waiting.get(node, {}).pop(uid, None)
        return node

    def look(self, before: NodeView | None, after: NodeView | None) -> None:
        """Take in a changed, new or lost node."""
        if after is None:
            if before is not None:
                self._waiting[before.name] = self.loads.pop(before.name).pods
            return
        load = self.loads.get(after.name)
        if load is not None:
            load.look(after)
            return
        load = self.loads[after.name] = NodeLoad(after)
        for pod in self._waiting.pop(after.name, {}).values():
            load.put(pod)


class Scheduler(Controller[Key]):
    """Binds what nobody has bound; what fits nowhere waits until a node changes in its favor."""

    name = "scheduler"
    watches = (NODES, PODS)
    workers = 8

    def __init__(self, cluster: Cluster, views: NodeViews) -> None:
        """Follow pods and nodes."""
        super().__init__(cluster)
        self._ledger = Ledger()
        self._parked: dict[Key, tuple[Object, Demand]] = {}
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
                self._freed(self._ledger.remove(objects.uid(gone)))
            return
        if not objects.node_of(new):
            if old is None or _changed_for_scheduling(old, new):
                self.queue.add(objects.key_of(new))
            return
        self._parked.pop(objects.key_of(new), None)
        if old is None or not objects.node_of(old):
            self._ledger.place(scheduling.demand_of(new), objects.node_of(new))

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        self._ledger.look(before, after)
        if after is not None:
            self._freed(after.name)
        if before is None or after is None:
            for key in self._parked:
                self.queue.add_after(key, _REFRESH_SECONDS)

    def _freed(self, node: str) -> None:
        load = self._ledger.loads.get(node)
        if load is None:
            return
        for key, (pod, demand) in self._parked.items():
            if not scheduling.obstacles(pod["spec"], demand, load):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Bind one pod, or park it and say why. Raises ApiError if the binding is refused."""
        pod = self._pods.objects.get(key)
        if pod is None or not _is_ours(pod) or self._ledger.has(objects.uid(pod)):
            self._parked.pop(key, None)
            return
        demand = scheduling.demand_of(pod)
        reasons: list[str] = []
        fitting: list[NodeLoad] = []
        for load in self._candidates(pod, reasons):
            found = scheduling.obstacles(pod["spec"], demand, load)
            reasons += found
            if not found:
                fitting.append(load)
        if fitting:
            chosen = min(fitting, key=lambda load: scheduling.spare(demand, load))
            await self._bind(pod, demand, chosen.view.name)
            return
        self._parked[key] = (pod, demand)
        await self._explain(pod, scheduling.explanation(len(self._ledger.loads), reasons))

    def _candidates(self, pod: Object, reasons: list[str]) -> list[NodeLoad]:
        loads = self._ledger.loads
        pinned = pinned_nodes(pod["spec"])
        if pinned is None:
            return list(loads.values())
        candidates = [loads[name] for name in pinned if name in loads]
        reasons += ["node(s) didn't match Pod's node affinity/selector"] * (len(loads) - len(candidates))
        return candidates

    async def _bind(self, pod: Object, demand: Demand, node: str) -> None:
        self._parked.pop(objects.key_of(pod), None)
        self._ledger.place(demand, node)
        try:
            await self.cluster.api.bind(objects.name(pod), node, objects.namespace(pod))
        except BaseException:
            self._ledger.remove(demand.uid)
            raise
        message = f"Successfully assigned {objects.namespace(pod)}/{objects.name(pod)} to {node}"
        self.event(PODS, pod, Note("Scheduled", message))

    async def _explain(self, pod: Object, message: str) -> None:
        self.event(PODS, pod, Note("FailedScheduling", message, warning=True))
        conditions = objects.status(pod).get("conditions") or []
        wanted = objects.with_condition(
            conditions, Condition("PodScheduled", "False", "Unschedulable", message), timestamps.now()
        )
        await self.cluster.write_status(PODS, pod, {"conditions": wanted})


def _is_ours(pod: Object) -> bool:
    spec = pod["spec"]
    return (
        not objects.node_of(pod)
        and objects.is_active(pod)
        and spec.get("schedulerName", _NAME) == _NAME
        and not spec.get("schedulingGates")
    )


def _changed_for_scheduling(old: Object, new: Object) -> bool:
    return old["spec"] != new["spec"] or objects.labels(old) != objects.labels(new)
