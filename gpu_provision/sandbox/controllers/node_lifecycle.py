"""Node controllers: taints of nodes that are not ready or cordoned, eviction by taints, pods of deleted nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, PODS, ApiError, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.controllers.node_filters import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    NodeViews,
    tolerates,
)
from gpu_provision.sandbox.objects import Key

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"

_OF_READY: Mapping[str, tuple[str, ...]] = MappingProxyType({"False": (NOT_READY,), "Unknown": (UNREACHABLE,)})
_MANAGED = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE_TAINT})
Taint = Mapping[str, Any]


def _desired_taints(node: Object) -> list[tuple[str, str]]:
    ready = (objects.condition(node, "Ready") or {}).get("status", "")
    wanted = [(key, effect) for key in _OF_READY.get(ready, ()) for effect in (NO_SCHEDULE, NO_EXECUTE)]
    if (node.get("spec") or {}).get("unschedulable"):
        wanted.append((UNSCHEDULABLE_TAINT, NO_SCHEDULE))
    return wanted


def build_taints(node: Object, moment: datetime) -> list[dict[str, Any]]:
    """Return the node's taints as its conditions demand; taints of other keys are kept."""
    present: Sequence[dict[str, Any]] = (node.get("spec") or {}).get("taints") or []
    wanted = _desired_taints(node)
    kept = [one for one in present if one["key"] not in _MANAGED or (one["key"], one["effect"]) in wanted]
    known = {(one["key"], one["effect"]) for one in kept}
    added = [
        {
            "key": key,
            "effect": effect,
            **({} if key == UNSCHEDULABLE_TAINT else {"timeAdded": objects.format_time(moment)}),
        }
        for key, effect in wanted
        if (key, effect) not in known
    ]
    return [*kept, *added]


def no_execute_taints(all_taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints that drive pods away."""
    return tuple(taint for taint in all_taints if taint["effect"] == NO_EXECUTE)


def seconds_left(pod: Object, all_taints: Iterable[Taint]) -> float | None:
    """Return how long the pod may stay from now on: 0 not at all, None for ever."""
    tolerations: Sequence[Mapping[str, Any]] = pod["spec"].get("tolerations") or ()
    shortest: float | None = None
    for taint in no_execute_taints(all_taints):
        fitting = [one for one in tolerations if tolerates(one, taint)]
        if not fitting:
            return 0.0
        limits = [
            max(float(one["tolerationSeconds"]), 0.0) for one in fitting if one.get("tolerationSeconds") is not None
        ]
        if limits:
            shortest = min([*limits, *([] if shortest is None else [shortest])])
    return shortest


class NodeLifecycle(QueueController[str]):
    """Turns readiness and cordons of nodes into taints; kubelets here never fall silent."""

    name = "node"
    watches = (NODES,)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow nodes."""
        super().__init__(cluster)
        self._nodes = cluster.informer(NODES)
        self._nodes.on_change(self._node_changed)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None and (old is None or _tainting(old) != _tainting(new)):
            self.queue.add(objects.name(new))

    async def sync(self, key: str) -> None:
        """Give one node its taints."""
        node = self._nodes.objects.get(("", key))
        if node is None:
            return
        wanted = build_taints(node, objects.now())
        if wanted != ((node.get("spec") or {}).get("taints") or []):
            version = node["metadata"]["resourceVersion"]
            change = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
            await self.cluster.patch(NODES, node, change)


def _tainting(node: Object) -> tuple[Any, ...]:
    return node.get("spec"), (objects.condition(node, "Ready") or {}).get("status")


def index_by_node(cluster: ControllerManager) -> None:
    """Index pods by the node that they are bound to."""
    cluster.informer(PODS).index("node", lambda pod: [node] if (node := objects.node_of(pod)) else [])


_NOT_FOUND = 404
_LOOK_AGAIN_SECONDS = 1.0


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
            for pod in self._pods.by("node", objects.name(node)):
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
        if pod is None or not node or ("", node) in self._nodes.objects or not await self._is_gone(node):
            return
        await self.cluster.delete(PODS, pod, grace_seconds=0)

    async def _is_gone(self, node: str) -> bool:
        try:
            await self.cluster.api.get(NODES, node)
        except ApiError as refusal:
            if refusal.code != _NOT_FOUND:
                raise
            return True
        return False


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
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        then = no_execute_taints(before.taints) if before else ()
        now = no_execute_taints(after.taints) if after else ()
        if after is None or then == now:
            return
        for pod in self._pods.by("node", after.name):
            if not now:
                self._since.pop(objects.uid(pod), None)
            self.queue.add(objects.key_of(pod))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            if old is not None:
                self._since.pop(objects.uid(old), None)
            return
        if old is None or objects.node_of(old) != objects.node_of(new):
            view = self._views.views.get(objects.node_of(new))
            if view is not None and no_execute_taints(view.taints):
                self.queue.add(objects.key_of(new))

    async def sync(self, key: Key) -> None:
        """Delete the pod if its time is over."""
        pod = self._pods.objects.get(key)
        view = self._views.views.get(objects.node_of(pod)) if pod else None
        if pod is None or view is None or objects.is_deleting(pod) or objects.is_finished(pod):
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
