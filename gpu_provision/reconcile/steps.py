"""What a run does next: pure, from a situation and its settled states to steps; and their execution in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gpu_provision.components import labels, node_labels
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.pods import Crash
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.findings import InvalidError
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import validation
from gpu_provision.planning.applyset import digest_of
from gpu_provision.planning.prune import superseded_pods
from gpu_provision.planning.states import LABELS_PENDING, ClusterState, Key, vector_add_of
from gpu_provision.planning.upgrades import DRIVER, is_kept
from gpu_provision.planning.validation import NOT_RUN, RUNS_IN, VALIDATIONS, NodePatch, node_patch
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import Cordon, Evict, StateTransition

if TYPE_CHECKING:
    from gpu_provision.reconcile.evidence import Crashes
    from gpu_provision.reconcile.rollout import RolloutController


@dataclass(frozen=True, slots=True)
class PatchNode:
    """Write labels of one node, and with a ``revision``, that was looked at, take the startup taint off it as well."""

    key: Key
    ref: ObjectRef
    uid: str
    labels: tuple[tuple[str, str | None], ...]
    revision: str = ""
    taints: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # those that stay

    def patch(self) -> dict[str, Any]:
        """Return the merge patch. Taints are a list that others write to, so they are only of the looked-at version."""
        metadata: dict[str, Any] = {"uid": self.uid, "labels": dict(self.labels)}
        if not self.revision:
            return {"metadata": metadata}
        taints = [dict(taint) for taint in self.taints]
        return {"metadata": {**metadata, "resourceVersion": self.revision}, "spec": {"taints": taints or None}}


@dataclass(frozen=True, slots=True)
class StartPod:
    """Start one validation pod."""

    key: Key
    ref: ObjectRef
    manifest: Manifest = field(compare=False)  # its name holds the digest of its content


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete a pod: one whose vectorAdd does not count, so that another one runs, or a driver pod that starts over."""

    key: Key
    ref: ObjectRef
    uid: str


@dataclass(frozen=True, slots=True)
class TransitionNode:
    """Take a node one state further in the rollout of its driver."""

    key: Key
    ref: ObjectRef
    move: StateTransition

    def patch(self) -> dict[str, Any]:
        """Return the merge patch: state, memory and cordon change together, or not at all."""
        state, notes = {states.STATE: self.move.to.value or None}, dict(self.move.annotations)
        metadata = {"resourceVersion": self.move.revision, "labels": state, "annotations": notes}
        if self.move.cordon is Cordon.KEEP:
            return {"metadata": metadata}
        return {"metadata": metadata, "spec": {"unschedulable": True if self.move.cordon is Cordon.SET else None}}


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Ask the Eviction API for a pod. ``budgets`` names the budgets as they were seen: new ones, another try."""

    key: Key
    ref: ObjectRef
    evict: Evict
    budgets: str


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read what a container printed before it ended by itself; each restart is another step."""

    key: Key
    ref: ObjectRef
    uid: str
    crash: Crash


Step = PatchNode | StartPod | RemovePod | TransitionNode | EvictPod | ReadLog


def next_actions(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    """Yield everything that can be done now, but for what a rollout of the driver does."""
    yield from _label_steps(seen, settled)
    yield from _validation_steps(seen, settled)


def _label_steps(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    nodes = {node.name: node for node in seen.observed.facts.nodes}
    targets = {target.name for target in seen.context.targets}
    leaving = {node.name for node in node_labels.leaving(seen.context)}
    for manifest in seen.desired.get("node_labels", ()):
        key = ("node_labels", manifest["metadata"]["name"])
        state, node = settled.get(key), nodes.get(key[1])
        if node is None or (state is not None and state.state in _SETTLED):
            continue
        if node.name in leaving and (state is None or state.reason != LABELS_PENDING):
            continue  # the rollout has it
        write = node_patch(manifest, node, seen.context.inventory)
        if node.name in targets and not labels.nfd_has_spoken(node.labels):
            write = NodePatch({}, write.frees)  # the taint may be what keeps Node Feature Discovery off
        if not write.is_empty:
            yield _label_step(key, node, write)
    # What tells that a node has been validated comes last.
    told = seen.parts[validation.STARTUP_TAINT].single if validation.STARTUP_TAINT in seen.parts else {}
    for target in seen.context.targets:
        key, facts = (validation.STARTUP_TAINT, target.name), target.facts
        state = settled.get(key)
        if facts and state and state.state is State.PROGRESSING and state.reason == validation.LABEL_PENDING:
            yield _label_step(key, facts, node_patch(told[target.name], facts, seen.context.inventory))


def _label_step(key: Key, node: NodeFacts, write: NodePatch) -> PatchNode:
    freed = (node.revision, validation.other_taints(node)) if write.frees else ()
    return PatchNode(key, ObjectRef("v1", "Node", "", node.name), node.uid, tuple(sorted(write.labels.items())), *freed)


def _validation_steps(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    for key, pod in superseded_pods(seen):
        if pod_view.phase(pod) != "Succeeded":  # those go together at the end of the run, and hold no GPU until then
            yield _removal_step(key, pod)
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            key = (component, target.name)
            state = settled.get(key)
            if state and state.state is State.PENDING and state.reason.startswith(NOT_RUN):
                yield from _rerun_steps(key, target, settled, seen)
            elif state and state.state is State.PROGRESSING:
                wanted = vector_add_of(component, target, seen)
                found = wanted.pod if wanted else None
                if found is not None and pod_view.phase(found) in _ENDED and validation.verdict_of(found) is None:
                    yield _removal_step(key, found)  # something else has ended it, so that it says nothing


def _rerun_steps(key: Key, target: Target, settled: Mapping[Key, NodeState], seen: ClusterState) -> Iterator[Step]:
    """Start a vectorAdd. Its DaemonSet does so itself where a pod of the validator is deleted, or is not there yet."""
    wanted = vector_add_of(key[0], target, seen)
    if wanted is None:
        return
    if (pod := wanted.pod) is not None:
        is_replaced = digest_of(pod) != wanted.content or is_kept(settled.get((DRIVER, target.name)))
        has_run = pod["metadata"]["uid"] in seen.observed.void or validation.verdict_of(pod) is not None
        if has_run and not is_replaced:
            yield _removal_step(key, pod)
        return
    manifest = seen.parts[RUNS_IN[key[0]]].single.get(target.name)
    if manifest and not any(ref_of(pod) == ref_of(manifest) for pod in seen.pods.get(key, ())):
        yield StartPod(key, ref_of(manifest), manifest)


def _removal_step(key: Key, pod: Manifest) -> RemovePod:
    return RemovePod(key, ref_of(pod), pod["metadata"]["uid"])


_ENDED = frozenset({"Succeeded", "Failed"})
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})  # labels that are ready are as wanted
SEEN_SECONDS = 5.0
"""Within which the effect of a step comes back through a watch, also on a busy server."""

_PARALLEL = 16


class StepExecutor:
    """Carries steps out in threads of its own; leaving the context waits for them."""

    def __init__(  # noqa: PLR0913 - what steps need, and whom they tell
        self,
        cluster: KubeClient,
        rollout: RolloutController,
        crashes: Crashes,
        *,
        rejected: dict[Key, str],
        on_end: Callable[[], None],
        on_written: Callable[[Manifest], None],
    ) -> None:
        """Prepare; nothing is started. Other threads call ``on_end`` when something has ended.

        ``rejected``: gets why the API server refused a step for good. ``on_written``: called from other threads with a
        pod or node as it is there, in case its watch lags.
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
        """Wait for what is under way."""
        self._pool.shutdown()

    @property
    def is_busy(self) -> bool:
        """Whether anything has not ended yet, or was not collected."""
        return bool(self._running)

    @property
    def moving(self) -> dict[str, StateTransition]:
        """Return the nodes that are being moved in a rollout, with the move."""
        return {step.move.node: step.move for step in self._running if isinstance(step, TransitionNode)}

    def start(self, step: Step, now: float) -> None:
        """Start a step, unless it runs or its effect may just not have been seen yet."""
        if step in self._running or now < self._not_before.get(step, 0.0):
            return
        self._not_before[step] = now + SEEN_SECONDS
        self._running[step] = self._pool.submit(self._perform, step)
        self._running[step].add_done_callback(self._end)

    def rest(self, seconds: float) -> None:
        """Let time pass, at most until a step ends: what follows it comes at once."""
        self._has_ended.wait(seconds)

    def collect(self) -> None:
        """Forget the steps that have ended. Raises what a step could not go on from."""
        self._has_ended.clear()
        for step in [step for step, future in self._running.items() if future.done()]:
            self._running.pop(step).result()

    def _end(self, _: Future[None]) -> None:
        if all(future.done() for future in list(self._running.values())):
            self._has_ended.set()
        self._on_end()

    def _perform(self, step: Step) -> None:
        try:
            self._do(step)
        except (AlreadyExistsError, NotFoundError, ConflictError):
            return  # another client was faster, or the object is gone: the next look shows it
        except InvalidError as error:
            self._rejected[step.key] = f"{step.ref}: {error.findings[0].evidence or error}"

    def _do(self, step: Step) -> None:
        match step:
            case PatchNode() | TransitionNode():
                self._on_written(self._cluster.merge(step.ref, step.patch()))
            case StartPod():
                self._start(step)
            case RemovePod():
                self._cluster.delete(step.ref, uid=step.uid)
            case EvictPod():
                self._rollout.evict(step)
            case ReadLog():
                self._crashes.read(step)
                return
        self.written.append(step)

    def _start(self, step: StartPod) -> None:
        """Create a pod. One that exists is what the next look has to see: its watch is behind."""
        try:
            self._on_written(self._cluster.create(step.manifest))
        except AlreadyExistsError:
            if pod := self._cluster.get(step.ref):
                self._on_written(pod)
            raise
