"""Carries a plan out: applies objects, then follows the cluster until every node has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from gpu_provision import components
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import AlreadyExists, NotFound, Outdated
from gpu_provision.cluster.lock import WriteLock
from gpu_provision.cluster.watching import Mirror
from gpu_provision.engine.actions import HarvestPod, LabelNode, RemovePod, StartPod, Step, next_steps
from gpu_provision.engine.objects import Objects
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.settle import SETTLED, Settler
from gpu_provision.engine.validations import Validations
from gpu_provision.engine.view import View, scopes
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.findings import Rejected
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning.states import Key, Situation, states

Listen = Callable[[Event], None]
OnStates = Callable[[Mapping[Key, NodeState]], None]

PATIENCE_SECONDS = 60.0
"""For how long a run bears an API server that does not answer: about a restart of a control plane."""

_PARALLEL = 16
_COALESCE_SECONDS = 0.1
_SEEN_SECONDS = 5.0  # within which the effect of a step comes back through a watch, also on a busy server
_TELL_SECONDS = 4.0  # of silence before it is told, and between two times
_RECORD = "record"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the result, and the situation at its end for whoever explains failures."""

    result: RunResult
    seen: Situation


class Run:
    """One run over one cluster. Make it, `execute` it once."""

    def __init__(
        self, cluster: Cluster, reading: Reading, *, listen: Listen, on_states: OnStates = lambda _: None
    ) -> None:
        """Prepare; nothing is written. Both callbacks are called from the executing thread only."""
        self._cluster, self._reading = cluster, reading
        self._listen, self._on_states = listen, on_states
        self._settler, self._view = settler_of(reading), View(reading)
        self._objects = Objects(cluster, reading, on_wait=lambda: self._tell_silence(cluster.silence.seconds))
        self._validations = Validations(cluster, reading)
        self._states: dict[Key, NodeState] = {}
        self._running: dict[object, Future[None]] = {}
        self._not_before: dict[Step, float] = {}
        self._written: list[Step] = []
        self._mirror: Mirror | None = None
        self._cancelled = False
        self._told_silence = float("-inf")

    def cancel(self) -> None:
        """End the run after the current step, with the lock given back; may be called from any thread."""
        self._cancelled = True
        self._cluster.hurry()
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self._mirror is not None:
            self._mirror.wake()

    def execute(self) -> Outcome:
        """Carry the plan out.

        Returns:
            The outcome, in which components may have failed on some nodes.

        Raises:
            Locked: Another run writes.
            Unreachable: The API server was silent for longer than `PATIENCE_SECONDS`.
        """
        began, before = time.monotonic(), self._cluster.requests
        inventory, changes = self._reading.context.inventory, self._reading.plan.changes
        home = [change for change in changes if _creates_namespace(change, inventory.cluster.namespace)]
        self._objects.apply(home)  # the lock lives there; two runs that both create it do no harm
        with WriteLock(self._cluster, inventory, on_wait=self._say) as lock:
            self._cluster.patience = PATIENCE_SECONDS
            self._objects.apply(change for change in changes if change not in home)
            self._objects.prune(changes)
            with Mirror(self._cluster, scopes(inventory), patience=PATIENCE_SECONDS) as mirror:
                self._mirror = mirror
                seen = self._follow(mirror, lock)
            self._validations.record(time.monotonic())
        return Outcome(self._result(self._cluster.requests - before, time.monotonic() - began), seen)

    def _result(self, requests: int, seconds: float) -> RunResult:
        evidence = self._validations.evidence
        return RunResult(
            changed=len(self._objects.written) + len(self._written),
            requests=requests,
            seconds=seconds,
            states=tuple(self._states.values()),
            evidence=tuple(evidence[key] for key in sorted(evidence)),
        )

    def _say(self, message: str) -> None:
        self._listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    def _follow(self, mirror: Mirror, lock: WriteLock) -> Situation:
        seen = self._look(mirror)
        stale = self._left_overs(seen)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            while not self._cancelled:
                self._collect()
                if lock.lost is not None:
                    raise lock.lost
                now = time.monotonic()
                settled = self._settle(seen, now)
                steps = list(next_steps(seen, settled, stale=stale, harvested=self._validations.harvested))
                for step in steps:
                    self._start(pool, step, now)
                self._keep_record(pool, now)
                if not steps and not self._running and all(state.state in SETTLED for state in settled.values()):
                    break
                self._tell_silence(mirror.silence)
                wait = self._settler.next_deadline(now)
                mirror.wait(min(wait, _SEEN_SECONDS) if steps or mirror.silence else wait)
                time.sleep(min(_COALESCE_SECONDS, time.monotonic() - now))  # many events, one look
                seen = self._look(mirror)
        return seen

    def _tell_silence(self, seconds: float) -> None:
        now = time.monotonic()
        if min(seconds, now - self._told_silence) > _TELL_SECONDS:
            self._told_silence = now
            self._say(f"the API server has not answered for {seconds:.0f} s; giving up after {PATIENCE_SECONDS:.0f}")

    def _look(self, mirror: Mirror) -> Situation:
        seen = self._view.look(mirror, self._objects.members, self._validations.passed)
        self._objects.follow(seen.desired, seen.observed.members)
        return seen

    def _left_overs(self, seen: Situation) -> frozenset[str]:
        """Validation pods that an earlier run left failed, or that are to be repeated."""
        wanted = {ref_of(item) for items in seen.desired.values() for item in items if item["kind"] == "Pod"}
        return frozenset(
            pod["metadata"]["uid"]
            for ref, pod in seen.observed.pods.items()
            if ref in wanted
            if self._reading.revalidate or pod.get("status", {}).get("phase") == "Failed"
        )

    def _settle(self, seen: Situation, now: float) -> dict[Key, NodeState]:
        self._settler.rejected |= self._objects.rejected | self._validations.failed
        settled = self._settler.settle(states(seen), now)
        self._announce(settled)
        self._states = settled
        self._on_states(settled)
        return settled

    def _announce(self, settled: Mapping[Key, NodeState]) -> None:
        on_nodes = {component for component, node in settled if node}
        for key, state in settled.items():
            before = self._states.get(key)
            if before is None and not state.node and state.component in on_nodes and state.state is State.READY:
                continue  # its nodes tell
            if before != state:
                self._listen(Event(component=state.component, node=state.node, state=state.state, message=state.reason))

    def _start(self, pool: ThreadPoolExecutor, step: Step, now: float) -> None:
        """Start a step, unless it runs or its effect may just not have been seen yet."""
        if step in self._running or now < self._not_before.get(step, 0.0):
            return
        self._not_before[step] = now + _SEEN_SECONDS
        self._submit(pool, step, partial(self._perform, step))

    def _keep_record(self, pool: ThreadPoolExecutor, now: float) -> None:
        if self._validations.is_due(now) and _RECORD not in self._running:
            self._submit(pool, _RECORD, partial(self._validations.record, now))

    def _submit(self, pool: ThreadPoolExecutor, name: object, work: Callable[[], None]) -> None:
        self._running[name] = pool.submit(work)
        self._running[name].add_done_callback(self._wake)

    def _collect(self) -> None:
        for name, future in list(self._running.items()):
            if future.done():
                del self._running[name]
                future.result()

    def _perform(self, step: Step) -> None:
        try:
            self._do(step)
        except (AlreadyExists, NotFound, Outdated):
            return  # somebody was faster, or the object is gone: the next look tells
        except Rejected as error:
            self._settler.rejected[step.key] = f"{step.ref}: {error.findings[0].evidence or error}"

    def _do(self, step: Step) -> None:
        match step:
            case LabelNode():
                self._cluster.label(step.ref, step.uid, dict(step.labels))
            case StartPod():
                self._cluster.create(step.manifest)
            case RemovePod():
                self._cluster.delete(step.ref, uid=step.uid)
            case HarvestPod():
                self._validations.harvest(step)
                return
        self._written.append(step)


def _creates_namespace(change: Change, name: str) -> bool:
    return change.action is Action.CREATE and change.ref.kind == "Namespace" and change.ref.name == name


def settler_of(reading: Reading) -> Settler:
    """Return a settler with the requirements and deadlines of a reading's components."""
    inventory, active = reading.context.inventory, reading.desired.keys()
    catalogue = {component.name: component for component in components.COMPONENTS}
    return Settler(
        requires=components.requirements(inventory),
        timeouts={name: timeout_of(catalogue[name], inventory) for name in active},
        one_by_one=frozenset({"driver"}),
    )


def timeout_of(component: components.Component, inventory: Inventory) -> int:
    """Return the seconds that a component may take on a node."""
    spec = component.spec(inventory)
    return int(getattr(spec, "timeout", _DEFAULT_TIMEOUT))


_DEFAULT_TIMEOUT = 300
