"""The node lifecycle controller: silent nodes become Unknown, conditions become taints."""

from __future__ import annotations

import asyncio

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import node_health, objects, timestamps
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.objects import Condition
from gpu_provision.sandbox.controllers.resources import LEASES, NODES, PODS

_LEASE_NAMESPACE = "kube-node-lease"
_GRACE_SECONDS = 40.0


class NodeLifecycle(Controller[str]):
    """Watches over nodes by their leases and heartbeats."""

    name = "node"
    watches = (NODES, LEASES, PODS)

    def __init__(self, cluster: Cluster, *, grace_seconds: float = _GRACE_SECONDS) -> None:
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
        if old is None or _heartbeat(old) != _heartbeat(new):
            self._heard[name] = _clock()
        if old is None or old.get("spec") != new.get("spec") or _states(old) != _states(new):
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
        conditions = node_health.conditions_of_silence(node, timestamps.now())
        if conditions == objects.status(node).get("conditions"):
            return node
        note = Note("NodeNotReady", f"Node {objects.name(node)} status is now: NodeNotReady")
        self.event(NODES, node, note)
        return await self.cluster.patch(NODES, node, {"status": {"conditions": conditions}}, "status")

    async def _taint(self, node: Object) -> None:
        wanted = node_health.taints(node, timestamps.now())
        if wanted == ((node.get("spec") or {}).get("taints") or []):
            return
        version = node["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
        await self.cluster.patch(NODES, node, change)

    async def _unready_pods(self, node: str) -> None:
        ready = [pod for pod in self._pods.by("node", node) if objects.is_ready(pod)]
        await all_of([self._unready(pod) for pod in ready])

    async def _unready(self, pod: Object) -> None:
        conditions = objects.with_condition(
            objects.status(pod)["conditions"],
            Condition("Ready", "False", "NodeNotReady", "The node is not ready"),
            timestamps.now(),
        )
        version = pod["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
        await self.cluster.patch(PODS, pod, change, "status")


def index_by_node(cluster: Cluster) -> None:
    """Index pods by the node that they are bound to."""
    cluster.informer(PODS).index("node", lambda pod: [node] if (node := objects.node_of(pod)) else [])


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _heartbeat(node: Object) -> str:
    return str((objects.condition(node, "Ready") or {}).get("lastHeartbeatTime", ""))


def _states(node: Object) -> dict[str, str]:
    return {one["type"]: one["status"] for one in objects.status(node).get("conditions") or ()}
