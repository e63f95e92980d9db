"""The DaemonSet controller: one pod on each eligible node, of the current ControllerRevision."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS, Object
from gpu_provision.sandbox.controllers import daemonset_plan as plan
from gpu_provision.sandbox.controllers.daemonset_plan import HASH_LABEL, Eligibility
from gpu_provision.sandbox.controllers.manager import (
    ControllerManager,
    OwnerClaim,
    QueueController,
    claim_objects,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.controllers.node_filters import NodeView, NodeViews
from gpu_provision.sandbox.objects import Key

_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 900.0


class DaemonSets(QueueController[Key]):
    """Keeps every DaemonSet's pods and status."""

    name = "daemonset"
    watches = (DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS)

    def __init__(self, cluster: ControllerManager, views: NodeViews) -> None:
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
            then = plan.judge_node(spec, before) if before else None
            if then != (plan.judge_node(spec, after) if after else None):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Create and delete pods as planned, then write the status."""
        daemon_set = self._sets.objects.get(key)
        if daemon_set is None or daemon_set["spec"].get("selector") is None:
            return
        pods = await claim_objects(self.cluster, OwnerClaim(daemon_set, PODS, daemon_set["spec"]["selector"]))
        if objects.is_deleting(daemon_set):
            return
        history = await load_history(self.cluster, daemon_set)
        nodes = self._eligible(key, daemon_set)
        grouped = plan.group_by_node(pods)

        def is_current(pod: Object) -> bool:
            return objects.labels(pod).get(HASH_LABEL) == history.hash

        try:
            if await self._act(daemon_set, history.hash, plan.plan_placement(nodes, grouped)):
                grouped = self._pods(daemon_set)
            await self._update(daemon_set, plan.select_outdated(daemon_set, nodes, grouped, is_current))
        finally:
            counted = plan.count_status(nodes, self._pods(daemon_set), is_current)
            observed = {**counted, "observedGeneration": daemon_set["metadata"].get("generation")}
            await self.cluster.write_status(DAEMON_SETS, daemon_set, observed)
        used = {objects.labels(pod).get(plan.HASH_LABEL, "") for pod in pods}
        await prune_revisions(self.cluster, daemon_set, history.old, used)

    def _eligible(self, key: Key, daemon_set: Object) -> dict[str, Eligibility]:
        template = daemon_set["spec"]["template"]
        judgement = self._judged.get(key)
        if judgement is None or judgement.template != template:
            judgement = self._judged[key] = _Judgement(template)
        return judgement.of(self._views.views)

    def _pods(self, daemon_set: Object) -> dict[str, list[Object]]:
        return plan.group_by_node(self.cluster.informer(PODS).by("controller uid", objects.uid(daemon_set)))

    async def _act(self, daemon_set: Object, digest: str, todo: plan.Placement) -> bool:
        await gather_all([self.delete_pod(daemon_set, pod) for pod in todo.delete])
        await gather_all([self._replace(daemon_set, failed) for failed in todo.finished])
        bodies = [plan.build_pod(daemon_set, digest, node) for node in todo.create]
        await gather_all([self.create_pod(daemon_set, body) for body in bodies])
        return bool(todo.delete or todo.finished or todo.create)

    async def _update(self, daemon_set: Object, old: Sequence[Object]) -> None:
        strategy = (daemon_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")
        if strategy == "RollingUpdate":
            await gather_all([self.delete_pod(daemon_set, pod) for pod in old])

    async def _replace(self, daemon_set: Object, finished: Object) -> None:
        node = plan.target_node(finished)
        wait = self._backoff.wait(objects.uid(daemon_set), node)
        if wait > 0:
            self.queue.add_after(objects.key_of(daemon_set), wait)
            return
        failed = objects.phase(finished) == "Failed"
        what = (
            f"{'failed' if failed else 'succeeded'} daemon pod {objects.namespace(finished)}/{objects.name(finished)}"
        )
        message = f"Found {what} on node {node}, will try to kill it"
        self.event(daemon_set, "FailedDaemonPod" if failed else "SucceededDaemonPod", message, warning=failed)
        await self.delete_pod(daemon_set, finished)


class _Judgement:
    """Remembers the eligibility of each node for one template, by the identity of the node's view."""

    def __init__(self, template: dict[str, Any]) -> None:
        self.template = template
        self._known: dict[str, tuple[NodeView, Eligibility]] = {}

    def of(self, views: dict[str, NodeView]) -> dict[str, Eligibility]:
        spec = self.template["spec"]
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name][0] is view else (view, plan.judge_node(spec, view))
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


class RevisionHistory(NamedTuple):
    """The current ControllerRevision and the older ones, the oldest first."""

    current: Object
    old: list[Object]

    @property
    def hash(self) -> str:
        """The value of the label controller-revision-hash of current pods."""
        return objects.labels(self.current)[HASH_LABEL]


def _build_revision(daemon_set: Object, number: int) -> Object:
    template = daemon_set["spec"]["template"]
    digest = objects.stable_hash(template)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{objects.name(daemon_set)}-{digest}",
            "namespace": objects.namespace(daemon_set),
            "labels": {**((template.get("metadata") or {}).get("labels") or {}), HASH_LABEL: digest},
            "annotations": dict(objects.annotations_of(daemon_set)),
            "ownerReferences": [objects.controller_ref(daemon_set)],
        },
        "data": {"spec": {"template": {**copy.deepcopy(template), "$patch": "replace"}}},
        "revision": number,
    }


async def load_history(cluster: ControllerManager, daemon_set: Object) -> RevisionHistory:
    """Return the history with the current template in it, created or renumbered as needed. Raises ApiError."""
    claim = OwnerClaim(daemon_set, CONTROLLER_REVISIONS, daemon_set["spec"]["selector"])
    known = sorted(await claim_objects(cluster, claim), key=lambda one: int(one["revision"]))
    wanted = _build_revision(daemon_set, 0)
    old = [one for one in known if one.get("data") != wanted["data"]]
    number = max((int(one["revision"]) for one in old), default=0) + 1
    current = next((one for one in reversed(known) if one not in old), None)
    if current is None:
        body = {**wanted, "revision": number}
        current = await cluster.create(CONTROLLER_REVISIONS, body, objects.namespace(daemon_set))
    elif int(current["revision"]) < number:
        current = await cluster.patch(CONTROLLER_REVISIONS, current, {"revision": number})
    return RevisionHistory(current, old)


async def prune_revisions(cluster: ControllerManager, daemon_set: Object, old: list[Object], used: set[str]) -> None:
    """Delete the oldest revisions beyond the limit that no pod is of. Raises ApiError."""
    limit = daemon_set["spec"].get("revisionHistoryLimit")
    unused = [one for one in old if objects.labels(one).get(HASH_LABEL) not in used]
    for revision in unused[: max(len(unused) - (10 if limit is None else int(limit)), 0)]:
        await cluster.delete(CONTROLLER_REVISIONS, revision)
