"""Reconcile one stack: compare live copies with its spec, and start the same runs as ``gpu-provision apply``."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpu_provision.history.rollback import active_inventory
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.lease import LeaderElector
from gpu_provision.kube.trim import trim
from gpu_provision.model.findings import InvalidInventoryError, ProvisionError, RunFailedError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State
from gpu_provision.model.text import join_limited
from gpu_provision.operator.queue import SETTLE_SECONDS, ReconcileRequest, ReconcileScheduler
from gpu_provision.operator.stack import rollback_run
from gpu_provision.operator.status import (
    Reason,
    StackObservation,
    StackPhase,
    StackProblem,
    evaluate_status,
    problem_of,
    since,
    was_rolled_back,
)
from gpu_provision.operator.telemetry import EventSink, StackEvent, StatusWriter
from gpu_provision.reconcile.observer import Observation, StackObserver, watched_scopes
from gpu_provision.reconcile.session import Session

_M_ARENA_MAX = -8  # of glibc's mallopt
OTHER_RUN_SECONDS = 5.0  # for how long another run is left alone before the next look whether it has ended
_MOST_NAMED = 3
_LONGEST_WAIT, _LEAST_WAIT = 30.0, 0.05
_PAUSES, _LONGEST_PAUSE = 4.0, 2.0
_BLIND_WAIT = 1.0  # a watch that has ended is asked for as often
_UNSEEN = "a run waits: a watch has ended, and the API server does not answer a new one, so what is there may be old"
_OTHER_RUN = "a run waits: another run writes to this stack, such as gpu-provision validate --gpus"


def use_one_arena() -> None:
    """Have all threads that follow a kind share one arena of the C library; call it before they start."""
    with contextlib.suppress(AttributeError):  # glibc alone has arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def free_memory() -> None:
    """Give free memory back now, and spare what is left from being searched for garbage before the next time.

    To search the live copies of a thousand nodes takes 0.1 s, and would else be done each time that a node joins.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(slots=True)
class StackReconciler:
    """Reconciles one stack as one request has it, over any number of runs."""

    request: ReconcileRequest
    inventory: Inventory
    reporter: StatusWriter
    take: EventSink
    is_superseded: Callable[[], bool]  # whether something else is asked by now
    leadership: LeaderElector | None = None  # what writes rest on besides the stack's lock
    rolled_back: StackProblem | None = None  # what is declared failed and was taken back: only another spec is tried
    _scheduler: ReconcileScheduler = field(default_factory=ReconcileScheduler)
    _mirror: InformerCache | None = None
    _session: Session | None = None
    _problem: StackProblem | None = None
    _is_preempted: bool = False
    _hold_up: str = ""
    _back_to: int = 0
    _yields_until: float = float("-inf")
    _held: Inventory | None = None  # what the stack is held to; None if it was rolled back to nothing on record
    _held_under: StackProblem | None = None  # the rollback after which it is held to that

    def __post_init__(self) -> None:
        """Continue where another controller ended."""
        self.rolled_back = self.rolled_back or was_rolled_back(self.request.stack)
        is_ready = evaluate_status(self.request.stack).phase is StackPhase.READY
        self._back_to = 0 if is_ready else rollback_run(self.request.stack)

    @property
    def _is_at_rest(self) -> bool:
        """Whether the stack is left alone: it was rolled back, and the target is not on record."""
        return self.rolled_back is not None and self._held is None

    @property
    def _is_out_of_force(self) -> bool:
        """Whether what the stack is held to was rolled back just now."""
        return self.rolled_back is not self._held_under

    @property
    def watch_problem(self) -> str:
        """See `InformerCache.problem`."""
        return mirror.problem if (mirror := self._mirror) else ""

    def wake(self) -> None:
        """Look at once whether the request is superseded; from any thread."""
        if mirror := self._mirror:
            mirror.wake()

    def run(self) -> None:
        """Reconcile until the request is superseded, or what the spec refers to has changed. Raises ProvisionError."""
        self._reconcile_until(self.inventory if self.rolled_back is None else self._in_force())
        while self._is_out_of_force and not self.is_superseded():
            self._reconcile_until(self._in_force())

    def _in_force(self) -> Inventory | None:
        """Return what a stack that was rolled back is held to; None, and nothing is done, without a usable record."""
        try:
            found = active_inventory(Session(self.inventory).cluster, self.inventory)
        except (RunFailedError, InvalidInventoryError) as error:
            self._emit("Halted", str(error.findings[0]), is_warning=True)
            return None
        if found is None:
            return None
        self._back_to = found.run
        self._emit("Holding", f"to the versions of run {found.run}")
        return found.inventory

    def _reconcile_until(self, inventory: Inventory | None) -> None:
        """Reconcile until `run` is over, or until the stack was rolled back."""
        self._held, self._held_under = inventory, self.rolled_back
        self._problem, self._scheduler = None, ReconcileScheduler()
        session = Session(inventory or self.inventory)
        reading = session.reading()
        mirror = InformerCache(session.cluster, watched_scopes(reading), keep=trim, listed=reading.listed)
        observer = StackObserver(reading, mirror)
        del reading, session  # the plan would be kept for as long
        with mirror:
            self._mirror = mirror
            free_memory()
            try:
                while not self.is_superseded() and not observer.is_outdated() and not self._is_out_of_force:
                    self._tick(observer, mirror)
            finally:
                self._mirror = None
                if self._session:
                    self._session.cancel()
                    _result(self._session)

    def _tick(self, observer: StackObserver, mirror: InformerCache) -> None:
        now, used = time.monotonic(), time.thread_time()
        found = observer.look(now)
        spent = time.thread_time() - used
        self.reporter.figures.take_needs(len(found.needs), now)
        self._scheduler.look(found.needs, now, edited=found.edited)
        if self._session and not self._session.is_running:
            self._finish_run(self._session, found, now)
        if self._is_out_of_force:
            return
        if self._session and self._session.is_following and (edits := self._scheduler.new_edits(now)):
            # The run waits for nodes: the next one begins with what was edited.
            self._emit("Edited", f"a run begins again; {_to_do(edits)}")
            self._is_preempted = True
            self._session.cancel()
        is_due = self._session is None and not self._is_at_rest and self._scheduler.is_due(now)
        self._note_hold_up(mirror, now, is_due=is_due)
        if is_due and not self._hold_up:
            self._start_run(observer, found, now)
        soon, observation = self._wait(time.monotonic()), self._observation(found)
        can_wait = bool(self._session) if is_due else soon < SETTLE_SECONDS  # what a run writes first comes first
        reported = min(soon, SETTLE_SECONDS) if can_wait else self.reporter.report(observation, now)
        waits = (reported, soon, observer.next_deadline(now), _LONGEST_WAIT)
        looked_at = time.monotonic()
        mirror.wait(max(min(waits), _LEAST_WAIT))
        # Many events, one look. Looking takes half of the time, and a fifth while a run looks, too.
        pause = min(_PAUSES * spent if self._session else spent, _LONGEST_PAUSE)
        time.sleep(max(0.0, pause - (time.monotonic() - looked_at)))

    def _wait(self, now: float) -> float:
        """Return in how many seconds there may be something to do although nothing has happened."""
        if self._is_at_rest:
            return float("inf")
        return _BLIND_WAIT if self._hold_up else self._scheduler.wait(now, is_running=self._session is not None)

    def _note_hold_up(self, mirror: InformerCache, now: float, *, is_due: bool) -> None:
        """Keep why a run that is due has to wait. It is logged once; a finding has told of another run already."""
        before, self._hold_up = self._hold_up, ""
        if is_due and mirror.silence:
            self._hold_up = _UNSEEN
            if before != _UNSEEN:
                self._emit("Waiting", _UNSEEN, is_warning=True)
        elif is_due and now < self._yields_until:
            self._hold_up = _OTHER_RUN

    def _observation(self, found: Observation) -> StackObservation:
        if not found.needs and all(state.state is not State.FAILED for state in found.states.values()):
            self._problem = None  # what stood in the way has gone by itself
        is_about_to = bool(found.needs - self._scheduler.undone) and not self._is_at_rest
        return self.request.observation(
            seen=found.seen,
            states=found.states,
            is_working=self._session is not None or is_about_to,
            hold_up=self._hold_up,
            problem=since(self.rolled_back, self._problem),
        )

    def _start_run(self, observer: StackObserver, found: Observation, now: float) -> None:
        inventory = self._held or self.inventory
        session = Session(inventory, observer=observer, back_to=self._back_to, leadership=self.leadership)
        session.listen(self._log)
        self._scheduler.on_start(now)
        try:
            if not session.reading().plan.is_empty:
                session.start()
                self._session = session
                self._emit("RunStarted", _to_do(found.needs))
                return
            self._problem = None
        except ProvisionError as error:
            self._problem = problem_of(error.findings)
        self._scheduler.on_finish(found.needs, now, is_well=self._problem is None)

    def _finish_run(self, session: Session, found: Observation, now: float) -> None:
        """Take the result of a run that has ended. Another run, such as a validation, is no failure."""
        problem, was_preempted = _result(session), self._is_preempted
        self._session, self._is_preempted = None, False
        if was_preempted and problem is None:
            self._scheduler.on_preempt()
            return
        if problem and problem.reason is Reason.OTHER_RUN:
            self._emit(problem.reason, problem.message)
            self._yields_until = now + OTHER_RUN_SECONDS
            self._scheduler.on_preempt()
            return
        self._problem = problem
        if problem and problem.reason is Reason.ROLLED_BACK:
            self.rolled_back = problem
        if not (problem or self.rolled_back):
            self._back_to = 0  # what is done later, such as a repair, brings nothing back
        free_memory()
        if problem:
            self._emit(problem.reason, problem.message, is_warning=True)
        else:
            declared = f", with the versions of run {self._back_to}" if self.rolled_back else ""
            self._emit("RunSucceeded", f"the stack is as declared{declared}")
        self.reporter.figures.take_run(now, is_well=problem is None)
        self._scheduler.on_finish(found.needs, now, is_well=problem is None)

    def _emit(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self.take(StackEvent(reason=reason, message=message, stack=self.request.name, is_warning=is_warning))

    def _log(self, event: Event) -> None:
        place = " on ".join(filter(None, (event.component, event.node)))
        told = " ".join(filter(None, (place, event.state.value if place else "", event.step, event.message)))
        failed = event.state is State.FAILED
        self._emit("RunFailing" if failed else "Run", told, is_warning=failed)


def _to_do(needs: Collection[str]) -> str:
    return f"to do: {join_limited(sorted(needs), _MOST_NAMED)}"


def _result(session: Session) -> StackProblem | None:
    """Wait for the end of a run, and return why it did not end as declared."""
    try:
        return problem_of(session.explain())
    except ProvisionError as error:
        return problem_of(error.findings)
