"""Carries a plan out: applies objects, then follows the cluster until every node has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, node_facts
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending, Record
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.plan import deletions
from gpu_provision.planning.states import Key, Situation
from gpu_provision.planning.upgrades import DRIVER, FOLLOWS_NODES, without_needless_validations
from gpu_provision.planning.validation import RUNS_IN, verdict_of
from gpu_provision.reconcile.actions import ReadLog, Step, next_steps
from gpu_provision.reconcile.apply import Objects
from gpu_provision.reconcile.history import WayBack, way_back
from gpu_provision.reconcile.observer import Live
from gpu_provision.reconcile.progress import Announcer
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.recorder import Book, reason_of, task_of
from gpu_provision.reconcile.rollout import Rollout
from gpu_provision.reconcile.situation import Look, View, scopes
from gpu_provision.reconcile.states import Standing, settler_of
from gpu_provision.reconcile.steps import SEEN_SECONDS, Crashes, Said, Steps, Validations
from gpu_provision.reconcile.timeline import with_steps
from gpu_provision.rollout.cordons import left_behind
from gpu_provision.rollout.state_machine import Phase

Listen = Callable[[Event], None]
OnStates = Callable[[Mapping[Key, NodeState]], None]

# Many events, one look: after a look there is a pause of so many times its processor time, and of no more than so many
# seconds. An event after the pause is evaluated at once. In an install a node waits for a look a few times; in a
# rollout it does for each of its states, and the next node waits as well.
_PAUSES, _MAX_PAUSE_SECONDS = 40.0, 0.5
_PAUSES_OF_ROLLOUT, _MAX_PAUSE_SECONDS_OF_ROLLOUT = 9.0, 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the result, and the situation at its end for whoever explains failures.

    Attributes:
        plan: What was to be changed.
        record: As it is on record.
        unrecorded: Why it is not; None if it is.
        back: Where the cluster is to go back to, since the rollout failed and the policy says so.
        told: Findings of a run before this one, whose rollback this is; or why a failed rollout is not rolled back.
        said: What pods that crashed have said, as it was told while the run waited.
    """

    result: RunResult
    seen: Situation
    plan: Plan
    record: Record
    unrecorded: Finding | None = None
    back: WayBack | None = None
    told: tuple[Finding, ...] = ()
    said: Mapping[Key, Said] = field(default_factory=dict)


class Run:
    """One run over one cluster. Make it, `execute` it once."""

    def __init__(  # noqa: PLR0913 - what a run is given
        self,
        cluster: Cluster,
        reading: Reading,
        *,
        listen: Listen,
        on_states: OnStates = lambda _: None,
        back_to: int = 0,
        live: Live | None = None,
    ) -> None:
        """Prepare; nothing is written. Both callbacks are called from the executing thread only.

        Args:
            back_to: Number of the run whose versions this one brings back; 0 if it is no rollback.
            live: What somebody has who follows `scopes` already, and goes on to; without, the run does so by itself.
        """
        self._cluster, self._reading = cluster, reading
        self._on_states = on_states
        self._settler, self._live = settler_of(reading), live
        self._view = live.view if live else View(_to_be_repeated(reading))
        self._standing = live.standing if live else Standing()
        self._objects = Objects(cluster, reading)
        self._validations = Validations(cluster, reading)
        self._rollout = Rollout(cluster, reading.context.inventory)
        self._crashes = Crashes(cluster)
        self._steps = Steps(
            cluster,
            self._rollout,
            self._crashes,
            rejected=self._settler.rejected,
            on_end=self._wake,
            on_written=self._note,
        )
        self._book = Book(cluster, task_of(reading, back_to=back_to), say=self._say, reached=self._reached)
        self._mirror: Mirror | None = None
        self._cancelled, self._removed = False, 0
        self._again: set[str] = set()
        self._stepping: frozenset[str] = frozenset()
        self._rolls_out: bool | None = None  # None until the first look
        self._began, self._before = time.monotonic(), cluster.requests
        self._announcer = Announcer(listen, self._began, known=self._standing.ready)

    @property
    def _states(self) -> Mapping[Key, NodeState]:
        return self._announcer.states

    @property
    def is_following(self) -> bool:
        """Whether the objects of the plan are applied, and what becomes of them is followed."""
        return self._mirror is not None

    @property
    def going_on(self) -> str:
        """Nothing: it is this process that takes the steps."""
        return ""

    def left_behind(self) -> tuple[Finding, ...]:
        """Return warnings about nodes that stay cordoned or halfway, as last seen or written; sends no request."""
        nodes = self._mirror.of(NODE).values() if self._mirror else ()
        return left_behind(map(node_facts, nodes), self._reading.context.inventory.name)

    def cancel(self) -> None:
        """End the run after the current step, with the lock given back; may be called from any thread."""
        self._cancelled = True
        self._cluster.cancel_retries()
        self._wake()

    def _note(self, written: Manifest) -> None:
        if self._mirror is not None:
            self._mirror.note(written)

    def _wake(self) -> None:
        if self._mirror is not None:
            self._mirror.wake()

    def execute(self) -> Outcome:
        """Carry the plan out.

        Returns:
            The outcome, in which components may have failed on some nodes.

        Raises:
            Locked: Another run writes, or has written since the plan was made, or has taken the lock away.
            Unreachable: The API server did not answer for as long as requests are repeated.
        """
        self._began, self._before = time.monotonic(), self._cluster.requests
        inventory, changes = self._reading.context.inventory, self._reading.plan.changes
        changes = self._make_room_for_the_lock(changes, inventory.cluster.namespace)
        planned_at = self._reading.observed.lock_version
        with WriteLock(self._cluster, inventory, on_wait=self._say, planned_at=planned_at) as lock, self._book:
            back, barred = way_back(self._reading, self._book.earlier, self._book.record)
            self._rollout.previous = back.name if back else ""
            self._objects.apply(changes)
            self._objects.prune(change for change in changes if change.certain)
            self._validations.forget_repeated()
            with self._live.mirror if self._live else self._following(scopes(inventory)) as mirror:
                self._mirror = mirror
                self._await_what_was_written(mirror)
                seen = self._follow(mirror, lock)
            self._objects.prune(change for change in deletions(seen) if change.component in FOLLOWS_NODES)
            self._validations.record()
            self._removed += self._validations.remove_succeeded(seen)
            back = back if self._rollout.goes_back else None
            self._book.end(self._ending(), changed=self._changed, reason=self._reason(back))
        return Outcome(
            result=self._reached(),
            seen=seen,
            plan=self._reading.plan,
            record=self._book.record,
            unrecorded=self._book.problem,
            back=back,
            told=barred if self._rollout.decision.phase in {Phase.PAUSED, Phase.FAILED} else (),
            said=self._crashes.said_of(self._states, seen),
        )

    def _following(self, what: Sequence[Scope]) -> Mirror:
        return Mirror(self._cluster, what, keep=trim, listed=self._reading.listed)

    def _await_what_was_written(self, mirror: Mirror) -> None:
        """Copies that were there before may lack it for a moment, which would look as if somebody had deleted it."""
        give_up = time.monotonic() + SEEN_SECONDS
        while not self._objects.are_shown(mirror) and time.monotonic() < give_up and not self._cancelled:
            mirror.wait(SEEN_SECONDS)

    def _reason(self, back: WayBack | None) -> str:
        return "; ".join(filter(None, (reason_of(self._states.values()), f"goes back to {back.name}" if back else "")))

    @property
    def _changed(self) -> int:
        return len(self._objects.written) + len(self._steps.written) + self._removed

    def _ending(self) -> Ending:
        if self._cancelled:
            return Ending.INTERRUPTED
        planned = any(item.severity is Severity.ERROR for item in self._reading.plan.findings)
        ready = all(state.state is State.READY for state in self._states.values())
        return Ending.SUCCEEDED if ready and not planned else Ending.FAILED

    def _make_room_for_the_lock(self, changes: tuple[Change, ...], name: str) -> tuple[Change, ...]:
        """Make the namespace that the lock lives in, if there is none; return the other changes."""
        room = [change for change in changes if _creates_namespace(change, name)]
        for change in room:
            self._objects.write(change)
        return tuple(change for change in changes if change not in room)

    def _reached(self) -> RunResult:
        evidence = dict(self._validations.evidence)
        return RunResult(
            changed=self._changed,
            requests=self._cluster.requests - self._before,
            run=self._book.record.number,
            seconds=time.monotonic() - self._began,
            states=tuple(self._states.values()),
            evidence=tuple(evidence[key] for key in sorted(evidence)),
            timeline=self._announcer.timeline,
        )

    def _say(self, message: str) -> None:
        self._announcer.say(message)

    def _follow(self, mirror: Mirror, lock: WriteLock) -> Situation:
        with self._steps:
            while True:
                self._again |= self._after(self._steps.collect())
                if lock.lost is not None:
                    raise lock.lost
                now, busy = time.monotonic(), time.thread_time()
                seen, steps = self._look(mirror, now)
                if self._rollout.goes_back:
                    return seen
                for step in steps:
                    self._steps.start(step, now)
                if self._cancelled or self._is_over(steps):
                    return seen
                self._book.keep(now)
                looked, spent = time.monotonic(), time.thread_time() - busy
                wait = min(self._settler.next_deadline(now), self._rollout.seconds())
                mirror.wait(min(wait, SEEN_SECONDS) if steps or mirror.silence else wait)
                self._steps.rest(looked + self._pause(spent) - time.monotonic())

    def _pause(self, spent: float) -> float:
        """Return how long to wait after a look on which so many seconds of a processor were spent."""
        if self._rolls_out:
            return min(_PAUSES_OF_ROLLOUT * spent, _MAX_PAUSE_SECONDS_OF_ROLLOUT)
        return min(_PAUSES * spent, _MAX_PAUSE_SECONDS)

    def _is_over(self, steps: Collection[Step]) -> bool:
        return not (steps or self._steps.is_busy or self._announcer.unsettled)

    def _after(self, ended: Collection[Step]) -> set[str]:
        """Return the nodes to be looked at again since steps have ended, of which no event may tell."""
        crashed = self._crashes.nodes if any(isinstance(step, ReadLog) for step in ended) else ()
        return {step.key[1] for step in ended}.union(crashed)

    def _look(self, mirror: Mirror, now: float) -> tuple[Situation, list[Step]]:
        look = self._view.look(mirror, self._objects.members, self._validations.passed, self._again)
        self._again = set()
        seen = look.seen
        self._objects.follow(look.part.desired, seen.observed.members)
        self._settler.rejected |= self._objects.rejected
        self._validations.take(look.part)
        raw, names = self._standing.take(look)
        if self._rolls_out is None:  # a run of a controller goes on from what was judged before it
            raw = self._standing.all
        before, self._rolls_out = self._rolls_out, self._has_rollout(raw)
        if self._rolls_out is not before:
            raw, names = self._standing.all, None
        rollout = self._rollout
        if self._rolls_out:
            raw, names = self._roll_out(look, mirror, raw, names)
        elif before:
            rollout.stop()
        logs = list(self._crashes.unread(raw, seen))
        settled, names = self._settle(self._told(raw, seen), names, now)
        settled = {**settled, **rollout.of_leaving(settled)}
        part = seen if names is None else self._view.part(names)
        shown = with_steps({**settled, **rollout.until_proven(settled)}, part, rollout.steps_of_nodes(settled))
        self._show(shown, is_whole=names is None)
        waiting = seen if names is None else self._view.part(names | self._stepping)
        steps = [*next_steps(waiting, self._states), *logs]
        self._stepping = frozenset(step.key[1] for step in steps)
        return seen, [*rollout.steps(seen, self._settler.rejected), *steps]

    def _has_rollout(self, raw: Mapping[Key, NodeState]) -> bool:
        return self._rollout.is_needed(raw) and (DRIVER, "") not in self._settler.rejected

    def _roll_out(
        self, look: Look, mirror: Mirror, raw: Mapping[Key, NodeState], names: frozenset[str] | None
    ) -> tuple[Mapping[Key, NodeState], frozenset[str] | None]:
        """Return the states with what a rollout says of drivers, and of which nodes: all for None."""
        others = self._rollout.look(look, mirror, raw, names, writing=self._steps.moving)
        if names is not None:
            names |= others
            raw = self._standing.of(names, look.seen)
        return without_needless_validations({**raw, **self._rollout.of_drivers(raw)}), names

    def _settle(
        self, raw: Mapping[Key, NodeState], names: frozenset[str] | None, now: float
    ) -> tuple[Mapping[Key, NodeState], frozenset[str] | None]:
        """Return the settled states of nodes that have changed, and which; None for all."""
        untimed = self._rollout.untimed()
        if names is None:
            return self._settler.settle(raw, now, untimed=untimed), None
        return self._settler.settle_some(raw, names, now, untimed=untimed)

    def _told(self, raw: Mapping[Key, NodeState], seen: Situation) -> Mapping[Key, NodeState]:
        """Return states with what crashed containers said."""
        return self._crashes.told(raw, seen)

    def _show(self, settled: Mapping[Key, NodeState], *, is_whole: bool) -> None:
        (self._announcer.show if is_whole else self._announcer.show_some)(settled)
        self._on_states(self._announcer.states)


def _creates_namespace(change: Change, name: str) -> bool:
    return change.action is Action.CREATE and change.ref.kind == "Namespace" and change.ref.name == name


def _to_be_repeated(reading: Reading) -> Reading:
    """Return a reading in which vectorAdds do not count that run again: they failed before, or the user asked so."""
    void = reading.observed.void | {
        pod["metadata"]["uid"]
        for pod in reading.observed.pods.values()
        if component_of(pod) in RUNS_IN.values() and (verdict := verdict_of(pod)) and not verdict.passed
    }
    return replace(reading, observed=replace(reading.observed, void=void))
