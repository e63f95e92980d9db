"""Deletes pods that are bound to nodes that no longer exist."""

from __future__ import annotations

from gpu_provision.sandbox.api import ApiError, Object
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.node_lifecycle import index_by_node
from gpu_provision.sandbox.controllers.resources import NODES, PODS
from gpu_provision.sandbox.informer import Key

_NOT_FOUND = 404
_LOOK_AGAIN_SECONDS = 1.0


class PodCollector(Controller[Key]):
    """Removes at once, without a grace period, what no kubelet will ever end."""

    name = "pod-garbage-collector"
    watches = (NODES, PODS)

    def __init__(self, cluster: Cluster) -> None:
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
