"""Evicts pods from nodes whose NoExecute taints they do not tolerate, or no longer."""

from __future__ import annotations

import asyncio

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import node_lifecycle, objects
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.fitting import NodeView
from gpu_provision.sandbox.controllers.node_lifecycle import index_by_node
from gpu_provision.sandbox.controllers.node_views import NodeViews
from gpu_provision.sandbox.controllers.resources import NODES, PODS
from gpu_provision.sandbox.informer import Key


class TaintEviction(Controller[Key]):
    """Gives each pod on a tainted node the time that its tolerations grant, then deletes it."""

    name = "taint-eviction"
    watches = (NODES, PODS)

    def __init__(self, cluster: Cluster, views: NodeViews) -> None:
        """Follow the taints of nodes and the binding of pods."""
        super().__init__(cluster)
        self._views = views
        self._since: dict[str, float] = {}
        self._pods = cluster.informer(PODS)
        index_by_node(cluster)
        views.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        then = node_lifecycle.driving(before.taints) if before else ()
        now = node_lifecycle.driving(after.taints) if after else ()
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
            if view is not None and node_lifecycle.driving(view.taints):
                self.queue.add(objects.key_of(new))

    async def sync(self, key: Key) -> None:
        """Delete the pod if its time is over."""
        pod = self._pods.objects.get(key)
        view = self._views.views.get(objects.node_of(pod)) if pod else None
        if pod is None or view is None or objects.is_deleting(pod) or objects.is_finished(pod):
            return
        allowed = node_lifecycle.seconds_left(pod, view.taints)
        if allowed is None:
            self._since.pop(objects.uid(pod), None)
            return
        moment = asyncio.get_running_loop().time()
        left = self._since.setdefault(objects.uid(pod), moment) + allowed - moment
        if left > 0:
            self.queue.add_after(key, left)
            return
        message = f"Marking for deletion Pod {objects.namespace(pod)}/{objects.name(pod)}"
        self.event(PODS, pod, Note("TaintManagerEviction", message))
        await self.cluster.delete(PODS, pod)
