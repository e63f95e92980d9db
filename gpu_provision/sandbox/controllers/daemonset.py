"""The DaemonSet controller: one pod on each eligible node, of the present revision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import daemonset_plan as plan
from gpu_provision.sandbox.controllers import objects, revisions
from gpu_provision.sandbox.controllers.claims import Claim, claimed, enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.daemonset_plan import Eligibility
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.fitting import NodeView
from gpu_provision.sandbox.controllers.node_views import NodeViews
from gpu_provision.sandbox.controllers.resources import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS
from gpu_provision.sandbox.informer import Key

_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 900.0


class DaemonSets(Controller[Key]):
    """Keeps every DaemonSet's pods and status."""

    name = "daemonset"
    watches = (DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS)

    def __init__(self, cluster: Cluster, views: NodeViews) -> None:
        """Follow DaemonSets, their pods and revisions, and nodes."""
        super().__init__(cluster)
        self._views = views
        self._judged: dict[Key, _Judgement] = {}
        self._backoff = _Backoff()
        self._sets = cluster.informer(DAEMON_SETS)
        self._sets.on_change(self._set_changed)
        enqueue_owners(cluster, DAEMON_SETS, PODS, self.queue.add)
        enqueue_owners(cluster, DAEMON_SETS, CONTROLLER_REVISIONS, self.queue.add)
        views.on_change(self._node_changed)

    def _set_changed(self, old: Object | None, new: Object | None) -> None:
        key = objects.key_of(new or old or {})
        if new is None:
            self._judged.pop(key, None)
        self.queue.add(key)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        for key, daemon_set in self._sets.objects.items():
            spec = daemon_set["spec"]["template"]["spec"]
            then = plan.eligibility(spec, before) if before else None
            if then != (plan.eligibility(spec, after) if after else None):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Create and delete pods as planned, then write the status."""
        daemon_set = self._sets.objects.get(key)
        if daemon_set is None or daemon_set["spec"].get("selector") is None:
            return
        pods = await claimed(self.cluster, Claim(DAEMON_SETS, daemon_set, PODS, daemon_set["spec"]["selector"]))
        if objects.is_deleting(daemon_set):
            return
        history = await revisions.history(self.cluster, DAEMON_SETS, daemon_set)
        nodes = self._eligible(key, daemon_set)
        grouped = plan.by_node(pods)
        rollout = self._rollout(daemon_set, history.hash)
        try:
            if await self._act(daemon_set, history.hash, plan.placement(nodes, grouped)):
                grouped = self._pods(daemon_set)
            await self._update(daemon_set, plan.outdated(nodes, grouped, rollout))
        finally:
            await self._write_status(daemon_set, nodes, rollout)
        used = {objects.labels(pod).get(plan.HASH_LABEL, "") for pod in pods}
        await revisions.prune(self.cluster, daemon_set, history.old, used=used)

    def _eligible(self, key: Key, daemon_set: Object) -> dict[str, Eligibility]:
        template = daemon_set["spec"]["template"]
        judgement = self._judged.get(key)
        if judgement is None or judgement.template != template:
            judgement = self._judged[key] = _Judgement(template)
        return judgement.of(self._views.views)

    def _rollout(self, daemon_set: Object, digest: str) -> plan.Rollout:
        return plan.Rollout(
            is_current=lambda pod: objects.labels(pod).get(plan.HASH_LABEL) == digest,
            max_unavailable=plan.max_unavailable(daemon_set),
            min_ready_seconds=int(daemon_set["spec"].get("minReadySeconds") or 0),
            moment=objects.now(),
        )

    def _pods(self, daemon_set: Object) -> dict[str, list[Object]]:
        return plan.by_node(self.cluster.informer(PODS).by("controller uid", objects.uid(daemon_set)))

    async def _act(self, daemon_set: Object, digest: str, todo: plan.Placement) -> bool:
        await all_of([self._delete(daemon_set, pod) for pod in todo.delete])
        await all_of([self._replace(daemon_set, failed) for failed in todo.finished])
        owner = objects.controller_ref(DAEMON_SETS, daemon_set)
        await all_of([self._create(daemon_set, owner, digest, node) for node in todo.create])
        return bool(todo.delete or todo.finished or todo.create)

    async def _update(self, daemon_set: Object, old: Sequence[Object]) -> None:
        strategy = (daemon_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")
        if strategy == "RollingUpdate":
            await all_of([self._delete(daemon_set, pod) for pod in old])

    async def _create(self, daemon_set: Object, owner: dict[str, Any], digest: str, node: str) -> None:
        body = plan.pod_for(daemon_set, owner, digest, node)
        namespace = objects.namespace(daemon_set)
        try:
            pod = await self.cluster.create(PODS, body, namespace)
        except Exception as error:
            self.event(DAEMON_SETS, daemon_set, Note("FailedCreate", f"Error creating: {error}", warning=True))
            raise
        self.event(DAEMON_SETS, daemon_set, Note("SuccessfulCreate", f"Created pod: {objects.name(pod)}"))

    async def _delete(self, daemon_set: Object, pod: Object) -> None:
        await self.cluster.delete(PODS, pod)
        self.event(DAEMON_SETS, daemon_set, Note("SuccessfulDelete", f"Deleted pod: {objects.name(pod)}"))

    async def _replace(self, daemon_set: Object, failed: plan.Failed) -> None:
        wait = self._backoff.wait(objects.uid(daemon_set), plan.target_node(failed.pod))
        if wait > 0:
            self.queue.add_after(objects.key_of(daemon_set), wait)
            return
        pod, node = failed.pod, plan.target_node(failed.pod)
        warning = failed.reason == "FailedDaemonPod"
        what = f"{'failed' if warning else 'succeeded'} daemon pod {objects.namespace(pod)}/{objects.name(pod)}"
        note = Note(failed.reason, f"Found {what} on node {node}, will try to kill it", warning=warning)
        self.event(DAEMON_SETS, daemon_set, note)
        await self._delete(daemon_set, pod)

    async def _write_status(self, daemon_set: Object, nodes: dict[str, Eligibility], rollout: plan.Rollout) -> None:
        grouped = self._pods(daemon_set)
        counted = plan.status(nodes, grouped, rollout)
        observed = {**counted, "observedGeneration": daemon_set["metadata"].get("generation")}
        await self.cluster.write_status(DAEMON_SETS, daemon_set, observed)
        pause = _until_available([pod for pods in grouped.values() for pod in pods], rollout)
        if pause is not None:
            self.queue.add_after(objects.key_of(daemon_set), pause)


def _until_available(pods: Sequence[Object], rollout: plan.Rollout) -> float | None:
    """Return after how many seconds the next ready pod becomes available; None if none is about to."""
    if rollout.min_ready_seconds <= 0:
        return None
    waits = [
        rollout.min_ready_seconds
        - objects.seconds_since((objects.condition(pod, "Ready") or {}).get("lastTransitionTime"), rollout.moment)
        for pod in pods
        if objects.is_ready(pod) and not objects.is_available(pod, rollout.min_ready_seconds, rollout.moment)
    ]
    return min(waits, default=None)


class _Judgement:
    """Remembers the eligibility of each node for one template, by the identity of the node's view."""

    def __init__(self, template: dict[str, Any]) -> None:
        self.template = template
        self._known: dict[str, tuple[NodeView, Eligibility]] = {}

    def of(self, views: dict[str, NodeView]) -> dict[str, Eligibility]:
        spec = self.template["spec"]
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name][0] is view else (view, plan.eligibility(spec, view))
            for name, view in views.items()
        }
        return {name: judged for name, (_, judged) in self._known.items()}


class _Backoff:
    """How long to wait before a finished pod is replaced: longer each time, forgotten after a quiet while."""

    def __init__(self) -> None:
        self._tries: dict[tuple[str, str], tuple[float, float]] = {}

    def wait(self, uid: str, node: str) -> float:
        """Return the seconds still to wait, or 0 and count a try."""
        moment = asyncio.get_running_loop().time()
        last, pause = self._tries.get((uid, node), (0.0, 0.0))
        if last and moment < last + pause:
            return last + pause - moment
        longer = _FIRST_BACKOFF if not last or moment > last + 2 * pause + _LONGEST_BACKOFF else pause * 2
        self._tries[uid, node] = (moment, min(longer, _LONGEST_BACKOFF))
        return 0.0
