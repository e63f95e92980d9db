"""The steps of a run, carried out side by side; verdicts of validations and logs of containers that crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Self

from gpu_provision.components import device_plugin_validation, driver_validation, validator
from gpu_provision.components.labels import APP, COMPONENT, STACK
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.failures import describe_exit
from gpu_provision.diagnostics.pods import Crash
from gpu_provision.kube import observe
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.kube.observe import POD
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import InvalidError, ProvisionError
from gpu_provision.model.progress import Evidence, NodeState, State
from gpu_provision.planning.plan import superseded_pods
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.planning.validation import RUNS_IN, VALIDATIONS, Verdict, verdict_of
from gpu_provision.reconcile.actions import EvictPod, PatchNode, ReadLog, RemovePod, StartPod, Step, TransitionNode
from gpu_provision.reconcile.observer import Memo
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.rollout import RolloutController
from gpu_provision.rollout.actions import StateTransition
from gpu_provision.rollout.steps import NOT_READY

LOG_LINES = 30
MOST_LOGS = 20
"""Pods of one component whose logs are read: a fleet-wide failure has one cause, and the first ones tell it."""


class CrashLog(NamedTuple):
    """The last lines of a container that ended by itself, and the name of its pod."""

    pod: str
    crash: Crash
    lines: tuple[str, ...]


@dataclass(slots=True)
class Crashes:
    """Reads logs through steps, so that nothing waits for them.

    What a pod said stands until its log has been read after the next restart.
    """

    cluster: KubeClient
    _asked: dict[str, dict[str, int]] = field(default_factory=dict)  # component -> uid -> restarts
    _said: dict[str, CrashLog] = field(default_factory=dict)  # by uid of the pod; written by threads of steps
    _alike: dict[tuple[str, str], CrashLog] = field(default_factory=dict)  # by component and how its container ended

    def unread(self, states: Mapping[Key, NodeState], seen: ClusterState) -> Iterator[ReadLog]:
        """Yield a step for each container that has ended by itself since its log was asked for."""
        for key, pod, crash in _crashing(states, seen):
            asked, uid = self._asked.setdefault(key[0], {}), pod["metadata"]["uid"]
            if asked.get(uid, -1) < crash.restarts and (uid in asked or len(asked) < MOST_LOGS):
                asked[uid] = crash.restarts
                yield ReadLog(key, ref_of(pod), uid, crash)

    def read(self, step: ReadLog) -> None:
        """Read one log; one that cannot be read says nothing."""
        crash = step.crash
        try:
            lines = self.cluster.log(step.ref, crash.container, lines=LOG_LINES, previous=crash.is_over)
        except ProvisionError:
            return
        if any(map(str.strip, lines)):
            self._said[step.uid] = self._alike[step.key[0], str(crash)] = CrashLog(step.ref.name, crash, lines)

    def told(self, states: Mapping[Key, NodeState], seen: ClusterState) -> Mapping[Key, NodeState]:
        """Return the states with what crashed containers said in place of how often they were started again."""
        known = {key: _with(states[key], pod, said) for key, pod, said in self._known(states, seen)}
        return {**states, **known} if known else states

    def said_of(self, states: Mapping[Key, NodeState], seen: ClusterState) -> dict[Key, CrashLog]:
        """Return what the pods that states are about have said."""
        return {key: said for key, _, said in self._known(states, seen)}

    def _known(self, states: Mapping[Key, NodeState], seen: ClusterState) -> Iterator[tuple[Key, Manifest, CrashLog]]:
        for key, pod, crash in _crashing(states, seen) if self._said else ():
            uid, alike = pod["metadata"]["uid"], self._alike.get((key[0], str(crash)))
            said = self._said.get(uid) if uid in self._asked.get(key[0], {}) else alike
            if said:
                yield key, pod, said


def pods_of(state: NodeState, seen: ClusterState) -> Iterator[Manifest]:
    """Yield the pods that a state is about: a component's on a node, or those of its Deployments, wherever they are."""
    if state.node:
        yield from seen.pods.get((state.component, state.node), ())
        return
    for (component, _), pods in seen.pods.items():
        yield from (pod for pod in pods if component == state.component and pod_view.is_of_deployment(pod))


def _crashing(states: Mapping[Key, NodeState], seen: ClusterState) -> Iterator[tuple[Key, Manifest, Crash]]:
    """Yield the states that are about a pod with a container that ended by itself, with the first such pod."""
    for key, state in states.items():
        if state.state is not State.PROGRESSING and state.state is not State.FAILED:
            continue
        found = ((pod, crash) for pod in pods_of(state, seen) if (crash := pod_view.crash(pod)))
        yield from ((key, *crashed) for crashed in islice(found, 1))


def _with(state: NodeState, pod: Manifest, said: CrashLog) -> NodeState:
    """Return a state that says what its pod said. One that is about something else, such as a turn, stays."""
    words, cause = describe_exit(str(said.crash), said.lines), pod_view.cause(pod)
    if cause in state.reason:
        return replace(state, reason=state.reason.replace(cause, words))
    is_about_it = not state.node or state.reason.startswith(NOT_READY)
    return replace(state, reason=f"{words}; {state.reason}") if is_about_it else state


_RUN_BY = {runs_in: validation for validation, runs_in in RUNS_IN.items()}


class Validations:
    """Takes verdicts off pods, and keeps on record those whose pods are deleted at the end.

    Attributes:
        passed: (component, node) -> the verdict as text, see `gpu_provision.planning.validation`.
        evidence: (component, node) -> what its vectorAdd printed in this run.
    """

    def __init__(self, cluster: KubeClient, reading: ClusterPlan) -> None:
        """Start from the record as it was read."""
        self._cluster, self._inventory = cluster, reading.context.inventory
        self._targets = frozenset(target.name for target in (*reading.context.targets, *reading.context.others))
        self.passed: dict[Key, str] = dict(reading.observed.passed)
        self.evidence: dict[Key, Evidence] = {}
        self._verdicts = Memo[str, Verdict | None]()
        self._taken: dict[str, Verdict] = {}
        self._is_first = True
        self._repeats = reading.revalidate
        self._recorded: dict[Key, str] | None = None if reading.revalidate else dict(self.passed)

    def take(self, seen: ClusterState) -> None:
        """Take what vectorAdds have shown since the last look; what they had shown before the run is no evidence."""
        is_old, self._is_first = self._is_first, False
        ran = [(_RUN_BY[name], node, pods) for (name, node), pods in seen.pods.items() if name in _RUN_BY and node]
        by_uid = {pod["metadata"]["uid"]: ((name, node), pod) for name, node, pods in ran for pod in pods}
        found = self._verdicts.of(by_uid, lambda uid: verdict_of(by_uid[uid][1]))
        for uid, verdict in found.items():
            if verdict and uid not in seen.observed.void and self._taken.get(uid) != verdict:
                self._taken[uid] = verdict
                key, pod = by_uid[uid]
                if verdict.passed and key[0] == device_plugin_validation.NAME:
                    self.passed[key] = str(verdict)
                if not is_old:
                    self.evidence[key] = verdict_evidence(key, pod, verdict)

    def forget_repeated(self) -> None:
        """Take what runs again off the record: if it fails, no reader may find the old success there."""
        if self._repeats:
            self.record()

    def record(self) -> None:
        """Write the record if it is behind: one request, however many nodes. Until then the pods tell what passed."""
        if self.passed != self._recorded:
            # A node that left the inventory leaves the record, too.
            of_targets = {key: verdict for key, verdict in self.passed.items() if key[1] in self._targets}
            observe.write_validations(self._cluster, self._inventory, of_targets)
            self._recorded = dict(self.passed)

    def remove_succeeded(self, seen: ClusterState) -> bool:
        """Delete all pods that have succeeded in one request; return whether there were any.

        Pods of the first validation are of an earlier version, whose validator has left some of its own.
        """
        names = {component for (component, _), _ in superseded_pods(seen)}
        selected = [f"{STACK}={self._inventory.name},{COMPONENT} in ({','.join(VALIDATIONS)})"] if names else []
        selected += [f"{APP}={validator.CUDA_POD}"] if driver_validation.NAME in names else []
        for labels in selected:
            namespace, succeeded = self._inventory.cluster.namespace, "status.phase=Succeeded"
            self._cluster.delete_all(POD, namespace, label_selector=labels, field_selector=succeeded)
        return bool(selected)


def verdict_evidence(key: Key, pod: Manifest, verdict: Verdict) -> Evidence:
    """Return what a vectorAdd of a validation printed on a node."""
    name = pod["metadata"]["name"]
    return Evidence(component=key[0], node=key[1], pod=name, passed=verdict.passed, lines=verdict.lines)


SEEN_SECONDS = 5.0
"""Within which the effect of a step comes back through a watch, also on a busy server."""

_PARALLEL = 16


class StepExecutor:
    """Carries steps out in threads of its own; leaving the context waits for them.

    Attributes:
        written: Every step that wrote something.
    """

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
        """Prepare; nothing is started.

        Args:
            rejected: Told why the API server refused a step for good.
            on_end: Called from another thread when something has ended.
            on_written: Called from another thread with a pod or node as it is there, in case its watch lags.
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
