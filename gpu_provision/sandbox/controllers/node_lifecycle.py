"""Node controllers: taints of nodes that are not ready or cordoned, eviction by taints, pods of deleted nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
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
    Taint,
    tolerates,
)
from gpu_provision.sandbox.objects import Key

_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_TAINT_BY_READINESS = {"False": _NOT_READY, "Unknown": _UNREACHABLE}
_MANAGED = {_NOT_READY, _UNREACHABLE, UNSCHEDULABLE_TAINT}
_LOOK_AGAIN_SECONDS = 1.0


def _readiness(node: Object) -> str:
    return str((objects.condition(node, "Ready") or {}).get("status", ""))


def build_taints(node: Object) -> list[dict[str, Any]]:
    """Return the node's taints as its conditions demand; taints of other keys are kept."""
    spec = node.get("spec") or {}
    wanted: dict[tuple[str, str], dict[str, str]] = {}
    if key := _TAINT_BY_READINESS.get(_readiness(node)):
        wanted = {(key, effect): {"timeAdded": objects.timestamp()} for effect in (NO_SCHEDULE, NO_EXECUTE)}
    if spec.get("unschedulable"):
        wanted[UNSCHEDULABLE_TAINT, NO_SCHEDULE] = {}
    present = spec.get("taints") or ()
    kept = [one for one in present if one["key"] not in _MANAGED or (one["key"], one["effect"]) in wanted]
    for one in kept:
        wanted.pop((one["key"], one["effect"]), None)
    return [*kept, *({"key": key, "effect": effect, **time} for (key, effect), time in wanted.items())]


def no_execute_taints(all_taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints that drive pods away."""
    return tuple(taint for taint in all_taints if taint["effect"] == NO_EXECUTE)


def seconds_left(pod: Object, all_taints: Iterable[Taint]) -> float | None:
    """Return how long the pod may stay from now on: 0 not at all, None for ever."""
    tolerations: Sequence[Mapping[str, Any]] = pod["spec"].get("tolerations") or ()
    limits: list[float] = []
    for taint in no_execute_taints(all_taints):
        fitting = [one for one in tolerations if tolerates(one, taint)]
        if not fitting:
            return 0.0
        limits += [max(float(limit), 0.0) for one in fitting if (limit := one.get("tolerationSeconds")) is not None]
    return min(limits, default=None)


class NodeLifecycle(QueueController[str]):
    """Turns readiness and cordons of nodes into taints; kubelets here never fall silent."""

    name = "node"
    watches = (NODES,)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow nodes."""
        super().__init__(cluster)
        self._nodes = cluster.informer(NODES)
        self._nodes.on_change(self._on_node_change)

    def _on_node_change(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            return
        if old is None or (old.get("spec"), _readiness(old)) != (new.get("spec"), _readiness(new)):
            self.queue.add(objects.name(new))

    async def sync(self, key: str) -> None:
        """Give one node its taints."""
        node = self._nodes.objects.get(("", key))
        if node is None:
            return
        wanted = build_taints(node)
        if wanted != ((node.get("spec") or {}).get("taints") or []):
            version = node["metadata"]["resourceVersion"]
            change = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
            await self.cluster.patch(NODES, node, change)


def index_by_node(cluster: ControllerManager) -> None:
    """Index pods by the node that they are bound to."""
    cluster.informer(PODS).index("node", lambda pod: [node] if (node := objects.node_of(pod)) else [])


class PodCollector(QueueController[Key]):
    """Removes at once, without a grace period, what no kubelet will ever end."""

    name = "pod-garbage-collector"
    watches = (NODES, PODS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow nodes that go and pods that are bound."""
        super().__init__(cluster)
        self._nodes, self._pods = cluster.informer(NODES), cluster.informer(PODS)
        index_by_node(cluster)
        self._nodes.on_event(self._node_changed)
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, change: str, node: Object) -> None:
        if change == "DELETED":
            for pod in self._pods.by_index("node", objects.name(node)):
                self.queue.add(objects.key_of(pod))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None or (old is not None and objects.node_of(old) == objects.node_of(new)):
            return
        if objects.node_of(new) and ("", objects.node_of(new)) not in self._nodes.objects:
            self.queue.add_after(objects.key_of(new), _LOOK_AGAIN_SECONDS)

    async def sync(self, key: Key) -> None:
        """Delete the pod if the API server, too, does not know its node."""
        pod = self._pods.objects.get(key)
        node = objects.node_of(pod) if pod else ""
        if pod is None or not node or ("", node) in self._nodes.objects:
            return
        if await self.cluster.api.find(NODES, node) is None:
            await self.cluster.delete(PODS, pod, grace_seconds=0)


class TaintEviction(QueueController[Key]):
    """Gives each pod on a tainted node the time that its tolerations grant, then deletes it."""

    name = "taint-eviction"
    watches = (NODES, PODS)

    def __init__(self, cluster: ControllerManager, views: NodeViews) -> None:
        """Follow the taints of nodes and the binding of pods."""
        super().__init__(cluster)
        self._views = views
        self._since: dict[str, float] = {}
        self._pods = cluster.informer(PODS)
        index_by_node(cluster)
        views.on_change(self._node_changed)
        self._pods.on_change(self._on_pod_change)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        then = no_execute_taints(before.taints) if before else ()
        now = no_execute_taints(after.taints) if after else ()
        if after is None or then == now:
            return
        for pod in self._pods.by_index("node", after.name):
            if not now:
                self._since.pop(objects.uid(pod), None)
            self.queue.add(objects.key_of(pod))

    def _on_pod_change(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._since.pop(objects.uid(old) if old else "", None)
        elif old is None or objects.node_of(old) != objects.node_of(new):
            view = self._views.views.get(objects.node_of(new))
            if view is not None and no_execute_taints(view.taints):
                self.queue.add(objects.key_of(new))

    async def sync(self, key: Key) -> None:
        """Delete the pod if its time is over."""
        pod = self._pods.objects.get(key)
        view = self._views.views.get(objects.node_of(pod)) if pod else None
        if pod is None or view is None or not objects.is_active(pod):
            return
        allowed = seconds_left(pod, view.taints)
        if allowed is None:
            self._since.pop(objects.uid(pod), None)
            return
        moment = asyncio.get_running_loop().time()
        left = self._since.setdefault(objects.uid(pod), moment) + allowed - moment
        if left > 0:
            self.queue.add_after(key, left)
            return
        message = f"Marking for deletion Pod {objects.namespace(pod)}/{objects.name(pod)}"
        self.event(pod, "TaintManagerEviction", message)
        await self.cluster.delete(PODS, pod)
