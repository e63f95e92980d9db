"""Node controllers: silent nodes, taints of conditions, eviction by taints, pods of deleted nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import LEASES, NODES, PODS, ApiError, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, gather_all
from gpu_provision.sandbox.controllers.node_filters import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    NodeViews,
    tolerates,
)
from gpu_provision.sandbox.objects import ConditionUpdate, Key

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"

_OF_READY: Mapping[str, tuple[str, ...]] = MappingProxyType({"False": (NOT_READY,), "Unknown": (UNREACHABLE,)})
_REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_MANAGED = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE_TAINT})
_SILENT = "Kubelet stopped posting node status."
_NEVER_HEARD = "Kubelet never posted node status."
Taint = Mapping[str, Any]


def unknown_conditions(node: Object, moment: datetime) -> list[dict[str, Any]]:
    """Return the conditions of a node that has stopped reporting: all Unknown."""
    conditions: list[dict[str, Any]] = objects.status(node).get("conditions") or []
    for kind in _REPORTED:
        present = objects.condition(node, kind)
        if present is not None and present["status"] == "Unknown":
            continue
        wanted = (
            ConditionUpdate(kind, "Unknown", "NodeStatusUnknown", _SILENT)
            if present
            else ConditionUpdate(kind, "Unknown", "NodeStatusNeverUpdated", _NEVER_HEARD)
        )
        conditions = objects.set_condition(conditions, wanted, moment)
    return conditions


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


_LEASE_NAMESPACE = "kube-node-lease"
_GRACE_SECONDS = 40.0


class NodeLifecycle(QueueController[str]):
    """Watches over nodes by their leases and heartbeats."""

    name = "node"
    watches = (NODES, LEASES, PODS)

    def __init__(self, cluster: ControllerManager, *, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Follow nodes and leases; a node is silent ``grace_seconds`` after its last sign of life."""
        super().__init__(cluster)
        self._grace_seconds = grace_seconds
        self._heard: dict[str, float] = {}
        self._nodes, self._pods = cluster.informer(NODES), cluster.informer(PODS)
        index_by_node(cluster)
        self._nodes.on_change(self._node_changed)
        cluster.informer(LEASES).on_change(self._lease_changed)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            if old is not None:
                self._heard.pop(objects.name(old), None)
            return
        name = objects.name(new)
        if old is None or _heartbeat_time(old) != _heartbeat_time(new):
            self._heard[name] = _clock()
        if old is None or old.get("spec") != new.get("spec") or _condition_states(old) != _condition_states(new):
            self.queue.add(name)

    def _lease_changed(self, _old: Object | None, new: Object | None) -> None:
        if new is not None and objects.namespace(new) == _LEASE_NAMESPACE:
            self._heard[objects.name(new)] = _clock()

    async def sync(self, key: str) -> None:
        """Judge one node."""
        node = self._nodes.objects.get(("", key))
        if node is None:
            self._heard.pop(key, None)
            return
        left = self._heard.setdefault(key, _clock()) + self._grace_seconds - _clock()
        if left > 0:
            self.queue.add_after(key, left)
        else:
            node = await self._silent(node)
            self.queue.add_after(key, self._grace_seconds)
            # Only then: a kubelet that lives, though it says NotReady, speaks for its pods itself.
            await self._unready_pods(key)
        await self._taint(node)

    async def _silent(self, node: Object) -> Object:
        conditions = unknown_conditions(node, objects.now())
        if conditions == objects.status(node).get("conditions"):
            return node
        self.event(node, "NodeNotReady", f"Node {objects.name(node)} status is now: NodeNotReady")
        return await self.cluster.patch(NODES, node, {"status": {"conditions": conditions}}, "status")

    async def _taint(self, node: Object) -> None:
        wanted = build_taints(node, objects.now())
        if wanted == ((node.get("spec") or {}).get("taints") or []):
            return
        version = node["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
        await self.cluster.patch(NODES, node, change)

    async def _unready_pods(self, node: str) -> None:
        ready = [pod for pod in self._pods.by("node", node) if objects.is_ready(pod)]
        await gather_all([self._unready(pod) for pod in ready])

    async def _unready(self, pod: Object) -> None:
        conditions = objects.set_condition(
            objects.status(pod)["conditions"],
            ConditionUpdate("Ready", "False", "NodeNotReady", "The node is not ready"),
            objects.now(),
        )
        version = pod["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
        await self.cluster.patch(PODS, pod, change, "status")


def index_by_node(cluster: ControllerManager) -> None:
    """Index pods by the node that they are bound to."""
    cluster.informer(PODS).index("node", lambda pod: [node] if (node := objects.node_of(pod)) else [])


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _heartbeat_time(node: Object) -> str:
    return str((objects.condition(node, "Ready") or {}).get("lastHeartbeatTime", ""))


def _condition_states(node: Object) -> dict[str, str]:
    return {one["type"]: one["status"] for one in objects.status(node).get("conditions") or ()}


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
