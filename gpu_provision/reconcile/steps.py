"""Decide the next steps of a run from the cluster's state, without I/O, and execute steps in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gpu_provision.components import labels, machine_config, node_labels
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.pods import Crash
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.findings import InvalidError
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import verdicts
from gpu_provision.planning.applyset import digest_of
from gpu_provision.planning.prune import superseded_pods
from gpu_provision.planning.states import LABELS_PENDING, ClusterState, ComponentNode, vector_add_of
from gpu_provision.planning.upgrades import DRIVER, is_kept
from gpu_provision.planning.verdicts import NOT_RUN, RUNS_IN, VALIDATIONS, NodePatch, node_patch
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import Cordon, Evict, StateTransition

if TYPE_CHECKING:
    from gpu_provision.reconcile.evidence import Crashes
    from gpu_provision.reconcile.rollout import RolloutController


@dataclass(frozen=True, slots=True)
class PatchNode:
    """Write labels of one node; with a ``revision``, the resourceVersion, remove the startup taint as well."""

    key: ComponentNode
    ref: ObjectRef
    uid: str
    labels: tuple[tuple[str, str | None], ...]
    revision: str = ""
    taints: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # the remaining taints

    def patch(self) -> dict[str, Any]:
        """Return the merge patch; taints are a list with other writers, so their patch has a resourceVersion."""
        metadata: dict[str, Any] = {"uid": self.uid, "labels": dict(self.labels)}
        if not self.revision:
            return {"metadata": metadata}
        taints = [dict(taint) for taint in self.taints]
        return {"metadata": {**metadata, "resourceVersion": self.revision}, "spec": {"taints": taints or None}}


@dataclass(frozen=True, slots=True)
class StartPod:
    """Start one validation pod."""

    key: ComponentNode
    ref: ObjectRef
    manifest: Manifest = field(compare=False)  # the name has the digest of the content


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete a pod: one whose vectorAdd is void, so that another one runs, or a driver pod that is replaced."""

    key: ComponentNode
    ref: ObjectRef
    uid: str


@dataclass(frozen=True, slots=True)
class TransitionNode:
    """Move a node to its next state in the rollout of its driver."""

    key: ComponentNode
    ref: ObjectRef
    transition: StateTransition

    def patch(self) -> dict[str, Any]:
        """Return the merge patch: state, annotations and cordon change together, or not at all."""
        changed = {**dict(self.transition.labels), states.STATE: self.transition.state.value or None}
        notes = dict(self.transition.annotations)
        metadata = {"resourceVersion": self.transition.revision, "labels": changed, "annotations": notes}
        if self.transition.cordon is Cordon.KEEP:
            return {"metadata": metadata}
        return {"metadata": metadata, "spec": {"unschedulable": True if self.transition.cordon is Cordon.SET else None}}


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod through the Eviction API. ``budgets``: digest of the budgets; changed budgets allow a retry."""

    key: ComponentNode
    ref: ObjectRef
    evict: Evict
    budgets: str


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the log of a crashed container; each restart is another step."""

    key: ComponentNode
    ref: ObjectRef
    uid: str
    crash: Crash


Step = PatchNode | StartPod | RemovePod | TransitionNode | EvictPod | ReadLog


def next_actions(seen: ClusterState, settled: Mapping[ComponentNode, NodeState]) -> Iterator[Step]:
    """Yield all possible steps except those of the driver rollout."""
    yield from _label_steps(seen, settled)
    yield from _validation_steps(seen, settled)


def _label_steps(seen: ClusterState, settled: Mapping[ComponentNode, NodeState]) -> Iterator[Step]:
    nodes = {node.name: node for node in seen.observed.facts.nodes}
    targets = {target.name for target in seen.context.targets}
    leaving = {node.name for node in node_labels.leaving_nodes(seen.context)}
    for manifest in seen.desired.get("node_labels", ()):
        key = ("node_labels", manifest["metadata"]["name"])
        state, node = settled.get(key), nodes.get(key[1])
        if node is None or (state is not None and state.state in _SETTLED):
            continue
        config = settled.get((machine_config.NAME, node.name))
        if config is not None and config.state is not State.READY:
            continue  # its driver would start before the reboot
        if node.name in leaving and (state is None or state.reason != LABELS_PENDING):
            continue  # the rollout writes the labels
        write = node_patch(manifest, node, seen.context.inventory)
        if node.name in targets and not labels.has_nfd_labels(node.labels):
            write = NodePatch({}, write.removes_taint)  # the taint may keep Node Feature Discovery off the node
        if not write.is_empty:
            yield _label_step(key, node, write)
    # The label of a validated node comes last.
    single = seen.parts[verdicts.STARTUP_TAINT].single if verdicts.STARTUP_TAINT in seen.parts else {}
    for target in seen.context.targets:
        key, facts = (verdicts.STARTUP_TAINT, target.name), target.facts
        state = settled.get(key)
        if facts and state and state.state is State.PROGRESSING and state.reason == verdicts.LABEL_PENDING:
            yield _label_step(key, facts, node_patch(single[target.name], facts, seen.context.inventory))


def _label_step(key: ComponentNode, node: NodeFacts, write: NodePatch) -> PatchNode:
    freed = (node.revision, verdicts.other_taints(node)) if write.removes_taint else ()
    return PatchNode(key, ObjectRef("v1", "Node", "", node.name), node.uid, tuple(sorted(write.labels.items())), *freed)


def _validation_steps(seen: ClusterState, settled: Mapping[ComponentNode, NodeState]) -> Iterator[Step]:
    for key, pod in superseded_pods(seen):
        if pod_view.phase(pod) != "Succeeded":  # one request deletes the succeeded ones at the end of the run
            yield _removal_step(key, pod)
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            key = (component, target.name)
            state = settled.get(key)
            if state and state.state is State.PENDING and state.reason.startswith(NOT_RUN):
                yield from _rerun_steps(key, target, settled, seen)
            elif state and state.state is State.PROGRESSING:
                wanted = vector_add_of(component, target, seen)
                last = wanted.pod if wanted else None
                if last is not None and pod_view.phase(last) in _ENDED and verdicts.verdict_of(last) is None:
                    yield _removal_step(key, last)  # killed from outside, so without a verdict


def _rerun_steps(
    key: ComponentNode, target: Target, settled: Mapping[ComponentNode, NodeState], seen: ClusterState
) -> Iterator[Step]:
    """Start a vectorAdd; in the validator, delete the pod, and its DaemonSet starts another one."""
    wanted = vector_add_of(key[0], target, seen)
    if wanted is None:
        return
    if (pod := wanted.pod) is not None:
        is_replaced = digest_of(pod) != wanted.content or is_kept(settled.get((DRIVER, target.name)))
        has_run = pod["metadata"]["uid"] in seen.observed.void_pod_uids or verdicts.verdict_of(pod) is not None
        if has_run and not is_replaced:
            yield _removal_step(key, pod)
        return
    manifest = seen.parts[RUNS_IN[key[0]]].single.get(target.name)
    if manifest and not any(ref_of(pod) == ref_of(manifest) for pod in seen.pods.get(key, ())):
        yield StartPod(key, ref_of(manifest), manifest)


def _removal_step(key: ComponentNode, pod: Manifest) -> RemovePod:
    return RemovePod(key, ref_of(pod), pod["metadata"]["uid"])


_ENDED = frozenset({"Succeeded", "Failed"})
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})
SEEN_SECONDS = 5.0
"""Maximum lag of a watch behind a write, also on a busy server."""

_PARALLEL = 16


class StepExecutor:
    """Executes steps in threads; leaving the context waits for them."""

    def __init__(  # noqa: PLR0913 - what steps need, and callbacks
        self,
        cluster: KubeClient,
        rollout: RolloutController,
        crashes: Crashes,
        *,
        rejected: dict[ComponentNode, str],
        on_end: Callable[[], None],
        on_written: Callable[[Manifest], None],
    ) -> None:
        """Prepare. Other threads call ``on_end`` when a step has ended.

        ``rejected``: gets the reason why the API server rejected a step. ``on_written``: other threads call it with the
        written pod or node, as a watch may lag.
        """
        self._cluster, self._rollout, self._crashes = cluster, rollout, crashes
        self._rejected, self._on_end, self._on_written = rejected, on_end, on_written
        self._pool = ThreadPoolExecutor(_PARALLEL)
        self._running: dict[Step, Future[None]] = {}
        self._has_ended = threading.Event()
        self._not_before: dict[Step, float] = {}
        self.written: list[Step] = []  # appended to by several threads; a count would lose some

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for running steps."""
        self._pool.shutdown()

    @property
    def is_busy(self) -> bool:
        """Whether a step is running, or was not collected."""
        return bool(self._running)

    @property
    def in_flight_moves(self) -> dict[str, StateTransition]:
        """The nodes with a state transition in flight."""
        return {step.transition.node: step.transition for step in self._running if isinstance(step, TransitionNode)}

    def start(self, step: Step, now: float) -> None:
        """Start a step, unless it is running or the watch may not have shown its effect yet."""
        if step in self._running or now < self._not_before.get(step, 0.0):
            return
        self._not_before[step] = now + SEEN_SECONDS
        self._running[step] = self._pool.submit(self._perform, step)
        self._running[step].add_done_callback(self._end)

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until a step ends."""
        self._has_ended.wait(seconds)

    def collect(self) -> None:
        """Drop the steps that have ended. Raises the error of a failed step."""
        self._has_ended.clear()
        for step in [step for step, future in self._running.items() if future.done()]:
            self._running.pop(step).result()

    def _end(self, _: Future[None]) -> None:
        if all(future.done() for future in list(self._running.values())):
            self._has_ended.set()
        self._on_end()

    def _perform(self, step: Step) -> None:
        try:
            self._execute(step)
        except (AlreadyExistsError, NotFoundError, ConflictError):
            return  # another client was faster, or the object is gone: the next iteration shows it
        except InvalidError as error:
            self._rejected[step.key] = f"{step.ref}: {error.findings[0].evidence or error}"

    def _execute(self, step: Step) -> None:
        match step:
            case PatchNode() | TransitionNode():
                self._on_written(self._cluster.merge_patch(step.ref, step.patch()))
            case StartPod():
                self._create_pod(step)
            case RemovePod():
                self._cluster.delete(step.ref, uid=step.uid)
            case EvictPod():
                self._rollout.evict(step)
            case ReadLog():
                self._crashes.read_log(step)
                return
        self.written.append(step)

    def _create_pod(self, step: StartPod) -> None:
        """Create a pod; note one that exists already, as the watch lags behind."""
        try:
            self._on_written(self._cluster.create(step.manifest))
        except AlreadyExistsError:
            if pod := self._cluster.get(step.ref):
                self._on_written(pod)
            raise
