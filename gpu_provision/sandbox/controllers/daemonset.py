"""The DaemonSet controller: one pod on each eligible node, of the current ControllerRevision."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS, Object
from gpu_provision.sandbox.controllers.manager import (
    OWNED,
    ControllerManager,
    QueueController,
    claim_objects,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.controllers.node_filters import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    NodeViews,
    find_untolerated,
    matches_node,
    pinned_nodes,
)
from gpu_provision.sandbox.objects import Key

_HASH_LABEL = "controller-revision-hash"
_GENERATION_LABEL = "pod-template-generation"
_GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"
_TOLERATED = (
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (UNSCHEDULABLE_TAINT, NO_SCHEDULE),
)
_TOLERATED_ON_HOST_NETWORK = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE)
_FIRST_BACKOFF, _MAX_BACKOFF = 1.0, 900.0

Pods = Mapping[str, Sequence[Object]]
"""Node name -> the pods of a DaemonSet on it, the oldest first."""


class Eligibility(NamedTuple):
    """Whether a node gets a pod, and whether a pod that is there may stay."""

    runs: bool
    stays: bool


def tolerations(template_spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the template's tolerations with those that every DaemonSet pod gets."""
    result = list(template_spec.get("tolerations") or ())
    for key, effect in (*_TOLERATED, *([_TOLERATED_ON_HOST_NETWORK] if template_spec.get("hostNetwork") else [])):
        added = {"key": key, "operator": "Exists", "effect": effect}
        if added not in result:
            result.append(added)
    return result


def check_eligibility(template_spec: Mapping[str, Any], view: NodeView) -> Eligibility:
    """Decide on one node by name, selectors, affinity and taints."""
    wanted = template_spec.get("nodeName")
    if (wanted and wanted != view.name) or not matches_node(template_spec, view):
        return Eligibility(runs=False, stays=False)
    tolerated = tolerations(template_spec)
    if find_untolerated(tolerated, view.taints) is None:
        return Eligibility(runs=True, stays=True)
    return Eligibility(runs=False, stays=find_untolerated(tolerated, view.taints, (NO_EXECUTE,)) is None)


def target_node(pod: Object) -> str:
    """Return the node that a pod of a DaemonSet runs on or is pinned to; empty if neither is known."""
    pinned = pinned_nodes(pod["spec"])
    return objects.node_of(pod) or (next(iter(pinned)) if pinned and len(pinned) == 1 else "")


def group_by_node(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Group the pods of a DaemonSet by node, the oldest first."""
    result: dict[str, list[Object]] = {}
    for pod in pods:
        result.setdefault(target_node(pod), []).append(pod)
    for on_node in result.values():
        if len(on_node) > 1:
            on_node.sort(key=lambda pod: (not objects.node_of(pod), objects.creation_timestamp(pod), objects.name(pod)))
    return result


def plan_placement(nodes: Mapping[str, Eligibility], pods: Pods) -> tuple[list[str], list[Object], list[Object]]:
    """Return the nodes that lack a pod, the pods to delete, and the finished pods to replace."""
    create: list[str] = []
    delete: list[Object] = []
    finished: list[Object] = []
    for name in {**nodes, **pods}:
        node, on_node = nodes.get(name), pods.get(name, ())
        present = [pod for pod in on_node if not objects.is_deleting(pod)]
        if node and node.runs and not on_node:
            create.append(name)
        elif node and node.stays:
            finished += [pod for pod in present if objects.is_finished(pod)]
            delete += [pod for pod in present if not objects.is_finished(pod)][1:]
        else:
            delete += present
    return create, delete, finished


def select_outdated(
    daemon_set: Object, nodes: Mapping[str, Eligibility], pods: Pods, is_current: Callable[[Object], bool]
) -> list[Object]:
    """Return the outdated pods that a rolling update may delete now.

    That includes pods on nodes whose taints the present template does not tolerate: they do not return.
    Surging is left out, so maxSurge counts as maxUnavailable.
    """
    rolling = (daemon_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    most: int | str = rolling.get("maxUnavailable", 1)
    most = (rolling.get("maxSurge") or 1) if most in {0, "0%"} else most
    wanted = [name for name, node in nodes.items() if node.runs]
    allowed = objects.resolve_percentage(most, len(wanted), up=True, default=1)
    unavailable = 0
    broken: list[Object] = []
    candidates: list[Object] = []
    for name in {**dict.fromkeys(wanted), **pods}:
        working = [pod for pod in pods.get(name, ()) if objects.is_active(pod)]
        if len(working) != 1:
            unavailable += 1
            continue
        available = objects.is_ready(working[0])
        unavailable += not available
        if not is_current(working[0]):
            (candidates if available else broken).append(working[0])
    return broken + candidates[: max(allowed - unavailable, 0)]


def count_status(
    nodes: Mapping[str, Eligibility], pods: Pods, is_current: Callable[[Object], bool]
) -> dict[str, int | None]:
    """Count the DaemonSet's status; fields that the API omits when they are 0 are None then."""
    desired = [name for name, node in nodes.items() if node.runs]
    oldest = [pods[name][0] for name in desired if pods.get(name)]
    ready = sum(map(objects.is_ready, oldest))
    return {
        "desiredNumberScheduled": len(desired),
        "currentNumberScheduled": len(oldest),
        "numberMisscheduled": sum(bool(pods.get(name)) for name, node in nodes.items() if not node.runs),
        "numberReady": ready,
        "updatedNumberScheduled": sum(map(is_current, oldest)) or None,
        "numberAvailable": ready or None,
        "numberUnavailable": (len(desired) - ready) or None,
    }


def build_pod(daemon_set: Object, revision: str, node: str) -> Object:
    """Return the pod that a DaemonSet creates for a node, pinned to it by node affinity."""
    pod = objects.pod_from_template(daemon_set["spec"]["template"], daemon_set)
    pod["metadata"]["labels"][_HASH_LABEL] = revision
    if generation := objects.annotations_of(daemon_set).get(_GENERATION_ANNOTATION):
        pod["metadata"]["labels"][_GENERATION_LABEL] = generation
    spec = pod["spec"]
    spec["tolerations"] = copy.deepcopy(tolerations(spec))
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [by_name]}]},
    }
    return pod


def build_revision(daemon_set: Object) -> Object:
    """Return the ControllerRevision of the present template, without its number."""
    template = daemon_set["spec"]["template"]
    digest = objects.stable_hash(template)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{objects.name(daemon_set)}-{digest}",
            "namespace": objects.namespace(daemon_set),
            "labels": {**((template.get("metadata") or {}).get("labels") or {}), _HASH_LABEL: digest},
            "annotations": dict(objects.annotations_of(daemon_set)),
            "ownerReferences": [objects.controller_ref(daemon_set)],
        },
        "data": {"spec": {"template": {**copy.deepcopy(template), "$patch": "replace"}}},
    }


class DaemonSets(QueueController[Key]):
    """Keeps every DaemonSet's pods and status."""

    name = "daemonset"
    watches = (DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS)

    def __init__(self, cluster: ControllerManager, views: NodeViews) -> None:
        """Follow DaemonSets, their pods and revisions, and nodes."""
        super().__init__(cluster)
        self._views = views
        self._judged: dict[Key, tuple[Object, dict[str, tuple[NodeView, Eligibility]]]] = {}
        self._tries: dict[tuple[str, str], tuple[float, float]] = {}
        self._sets = cluster.informer(DAEMON_SETS)
        self._sets.on_event(self._on_set_change)
        enqueue_owners(cluster, DAEMON_SETS, PODS, self.queue.add)
        enqueue_owners(cluster, DAEMON_SETS, CONTROLLER_REVISIONS, self.queue.add)
        views.on_change(self._node_changed)

    def _on_set_change(self, change: str, daemon_set: Object) -> None:
        if change == "DELETED":
            self._judged.pop(objects.key_of(daemon_set), None)
        self.queue.add(objects.key_of(daemon_set))

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        for key, daemon_set in self._sets.objects.items():
            spec = daemon_set["spec"]["template"]["spec"]
            then = check_eligibility(spec, before) if before else None
            if then != (check_eligibility(spec, after) if after else None):
                self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Create and delete pods as planned, then write the status."""
        daemon_set = self._sets.objects.get(key)
        if daemon_set is None or daemon_set["spec"].get("selector") is None:
            return
        pods = await claim_objects(self.cluster, daemon_set, PODS)
        if objects.is_deleting(daemon_set):
            return
        digest, old = await self._load_history(daemon_set)
        nodes = self._eligible(key, daemon_set)
        grouped = group_by_node(pods)

        def is_current(pod: Object) -> bool:
            return objects.labels(pod).get(_HASH_LABEL) == digest

        try:
            create, delete, finished = plan_placement(nodes, grouped)
            await gather_all([self.delete_pod(daemon_set, pod) for pod in delete])
            await gather_all([self._replace(daemon_set, pod) for pod in finished])
            await gather_all([self.create_pod(daemon_set, build_pod(daemon_set, digest, node)) for node in create])
            if create or delete or finished:
                grouped = self._pods(daemon_set)
            if (daemon_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate":
                outdated = select_outdated(daemon_set, nodes, grouped, is_current)
                await gather_all([self.delete_pod(daemon_set, pod) for pod in outdated])
        finally:
            counted = count_status(nodes, self._pods(daemon_set), is_current)
            observed = {**counted, "observedGeneration": daemon_set["metadata"].get("generation")}
            await self.cluster.write_status(DAEMON_SETS, daemon_set, observed)
        used = {objects.labels(pod).get(_HASH_LABEL, "") for pod in pods}
        unused = [one for one in old if objects.labels(one).get(_HASH_LABEL) not in used]
        limit = daemon_set["spec"].get("revisionHistoryLimit")
        for revision in unused[: max(len(unused) - (10 if limit is None else int(limit)), 0)]:
            await self.cluster.delete(CONTROLLER_REVISIONS, revision)

    def _eligible(self, key: Key, daemon_set: Object) -> dict[str, Eligibility]:
        """Judge each node; what was judged of the same template and the same view of a node is remembered."""
        template = daemon_set["spec"]["template"]
        judged, known = self._judged.get(key, ({}, {}))
        if judged != template:
            known = {}
        now: dict[str, tuple[NodeView, Eligibility]] = {}
        for name, view in self._views.views.items():
            remembered = known.get(name)
            if remembered is None or remembered[0] is not view:
                remembered = (view, check_eligibility(template["spec"], view))
            now[name] = remembered
        self._judged[key] = (template, now)
        return {name: eligibility for name, (_, eligibility) in now.items()}

    def _pods(self, daemon_set: Object) -> dict[str, list[Object]]:
        return group_by_node(self.cluster.informer(PODS).by_index(OWNED, objects.uid(daemon_set)))

    async def _replace(self, daemon_set: Object, finished: Object) -> None:
        """Delete a finished pod, each time after a longer pause; a quiet while forgets that."""
        node, moment = target_node(finished), asyncio.get_running_loop().time()
        last, pause = self._tries.get((objects.uid(daemon_set), node), (0.0, 0.0))
        if last and moment < last + pause:
            self.queue.add_after(objects.key_of(daemon_set), last + pause - moment)
            return
        longer = _FIRST_BACKOFF if not last or moment > last + 2 * pause + _MAX_BACKOFF else pause * 2
        self._tries[objects.uid(daemon_set), node] = (moment, min(longer, _MAX_BACKOFF))
        failed = objects.phase(finished) == "Failed"
        pod = f"{'failed' if failed else 'succeeded'} daemon pod {objects.namespace(finished)}/{objects.name(finished)}"
        message = f"Found {pod} on node {node}, will try to kill it"
        self.event(daemon_set, "FailedDaemonPod" if failed else "SucceededDaemonPod", message, warning=failed)
        await self.delete_pod(daemon_set, finished)

    async def _load_history(self, daemon_set: Object) -> tuple[str, list[Object]]:
        """Return the hash of the current template and the older revisions, the oldest first.

        The revision of the current template is created or renumbered as needed. Raises ApiError.
        """
        claimed = await claim_objects(self.cluster, daemon_set, CONTROLLER_REVISIONS)
        known = sorted(claimed, key=lambda one: int(one["revision"]))
        wanted = build_revision(daemon_set)
        old = [one for one in known if one.get("data") != wanted["data"]]
        number = max((int(one["revision"]) for one in old), default=0) + 1
        current = next((one for one in reversed(known) if one not in old), None)
        if current is None:
            body = {**wanted, "revision": number}
            current = await self.cluster.create(CONTROLLER_REVISIONS, body, objects.namespace(daemon_set))
        elif int(current["revision"]) < number:
            current = await self.cluster.patch(CONTROLLER_REVISIONS, current, {"revision": number})
        return objects.labels(current)[_HASH_LABEL], old
