"""Reconcile one stack: compare the informer cache with its spec, and start the runs of ``gpu-provision apply``."""

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
from gpu_provision.operator.schedule import EDIT_SECONDS, SETTLE_SECONDS, ReconcileRequest, ReconcileScheduler
from gpu_provision.operator.stack import rollback_run
from gpu_provision.operator.status import (
    Reason,
    StackObservation,
    StackPhase,
    StackProblem,
    add_later_problem,
    evaluate_status,
    problem_of,
    rollback_problem,
)
from gpu_provision.operator.telemetry import EventSink, StackEvent, StatusWriter
from gpu_provision.reconcile.observer import Observation, StackObserver, watched_scopes
from gpu_provision.reconcile.session import Session

_M_ARENA_MAX = -8  # option of glibc's mallopt
OTHER_RUN_SECONDS = 5.0  # between two checks whether another run has ended
_MAX_NAMED = 3
_MAX_WAIT, _MIN_WAIT = 30.0, 0.05
_PAUSES, _MAX_PAUSE = 4.0, 2.0
_BLIND_WAIT = 1.0  # between two checks of a disconnected watch
_WATCH_LOST = "a run waits: a watch has ended, and the API server does not answer a new one; the cache may be stale"
_OTHER_RUN = "a run waits: another run writes to this stack, such as gpu-provision validate --gpus"


def use_one_arena() -> None:
    """Make all threads share one malloc arena, which saves memory; call it before they start."""
    with contextlib.suppress(AttributeError):  # only glibc has mallopt
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def free_memory() -> None:
    """Return free memory to the system, and exclude the rest from garbage collection until the next call.

    A collection over the cache of a thousand nodes takes 0.1 s, and would otherwise run for each node that joins.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(slots=True)
class StackReconciler:
    """Reconciles one stack for one request, over any number of runs."""

    request: ReconcileRequest
    inventory: Inventory
    reporter: StatusWriter
    on_event: EventSink
    is_superseded: Callable[[], bool]  # whether a newer request exists
    leadership: LeaderElector | None = None  # fences writes besides the stack's lock
    rolled_back: StackProblem | None = None  # the spec failed and was rolled back; only another spec is tried
    _scheduler: ReconcileScheduler = field(default_factory=ReconcileScheduler)
    _cache: InformerCache | None = None
    _session: Session | None = None
    _problem: StackProblem | None = None
    _is_preempted: bool = False
    _wait_reason: str = ""
    _rollback_to: int = 0
    _yields_until: float = float("-inf")
    _target: Inventory | None = None  # the inventory in force; None after a rollback without a usable record
    _target_problem: StackProblem | None = None  # the rollback that led to this target

    def __post_init__(self) -> None:
        """Take rollback state over from the stack's status and annotations."""
        self.rolled_back = self.rolled_back or rollback_problem(self.request.stack)
        is_ready = evaluate_status(self.request.stack).phase is StackPhase.READY
        self._rollback_to = 0 if is_ready else rollback_run(self.request.stack)

    @property
    def _is_suspended(self) -> bool:
        """Whether no run is possible: the stack was rolled back, and no usable record exists."""
        return self.rolled_back is not None and self._target is None

    @property
    def _is_target_rolled_back(self) -> bool:
        """Whether a run has just rolled the present target back."""
        return self.rolled_back is not self._target_problem

    @property
    def watch_problem(self) -> str:
        """See `InformerCache.problem`."""
        return cache.problem if (cache := self._cache) else ""

    def wake(self) -> None:
        """Check at once whether the request is superseded; from any thread."""
        if cache := self._cache:
            cache.notify()

    def run(self) -> None:
        """Reconcile until the request is superseded or an object that the spec names changes. Raises ProvisionError."""
        self._reconcile_until(self.inventory if self.rolled_back is None else self._active_inventory())
        while self._is_target_rolled_back and not self.is_superseded():
            self._reconcile_until(self._active_inventory())

    def _active_inventory(self) -> Inventory | None:
        """Return the inventory that a rolled back stack keeps; None, which suspends it, without a usable record."""
        try:
            active = active_inventory(Session(self.inventory).cluster, self.inventory)
        except (RunFailedError, InvalidInventoryError) as error:
            self._emit("Halted", str(error.findings[0]), is_warning=True)
            return None
        if active is None:
            return None
        self._rollback_to = active.run
        self._emit("Holding", f"at the versions of run {active.run}")
        return active.inventory

    def _reconcile_until(self, inventory: Inventory | None) -> None:
        """Reconcile until `run` ends or a run rolls the stack back."""
        self._target, self._target_problem = inventory, self.rolled_back
        self._problem, self._scheduler = None, ReconcileScheduler()
        session = Session(inventory or self.inventory)
        reading = session.cluster_plan()
        cache = InformerCache(session.cluster, watched_scopes(reading), keep=trim, listed=reading.listed)
        observer = StackObserver(reading, cache)
        del reading, session  # frees the plan
        with cache:
            self._cache = cache
            free_memory()
            try:
                while not self.is_superseded() and not observer.is_outdated() and not self._is_target_rolled_back:
                    self._tick(observer, cache)
            finally:
                self._cache = None
                if self._session:
                    self._session.cancel()
                    _run_problem(self._session)

    def _tick(self, observer: StackObserver, cache: InformerCache) -> None:
        now, used = time.monotonic(), time.thread_time()
        observed = observer.observe(now)
        spent = time.thread_time() - used
        self.reporter.metrics.record_needs(len(observed.needs), now)
        self._scheduler.observe(observed.needs, now, edited=observed.edited)
        if self._session and not self._session.is_running:
            self._finish_run(self._session, observed, now)
        if self._is_target_rolled_back:
            return
        if self._session and self._session.is_following and (edits := self._scheduler.new_edits(now)):
            # The run only waits for nodes: the next one begins with the edits.
            self._emit("Edited", f"a run begins again; {_pending_message(edits)}")
            self._is_preempted = True
            self._session.cancel()
        is_due = self._session is None and not self._is_suspended and self._scheduler.is_due(now)
        self._update_wait_reason(cache, now, is_due=is_due)
        if is_due and not self._wait_reason:
            self._start_run(observer, observed, now)
        soon, observation = self._wait(time.monotonic()), self._observation(observed)
        can_wait = bool(self._session) if is_due else soon < SETTLE_SECONDS  # the first writes of a run have priority
        reported = min(soon, SETTLE_SECONDS) if can_wait else self.reporter.report(observation, now)
        waits = (reported, soon, observer.next_deadline(now), _MAX_WAIT)
        looked_at = time.monotonic()
        cache.wait(max(min(waits), _MIN_WAIT))
        # Many events, one iteration: half of the time goes to iterations, and a fifth during a run, which observes too.
        pause = min(_PAUSES * spent if self._session else spent, _MAX_PAUSE)
        if self._session is None and soon <= EDIT_SECONDS:
            pause = max(pause, soon)  # events meanwhile would only delay the run
        time.sleep(max(0.0, pause - (time.monotonic() - looked_at)))

    def _wait(self, now: float) -> float:
        """Return the seconds until the next iteration without an event."""
        if self._is_suspended:
            return float("inf")
        return _BLIND_WAIT if self._wait_reason else self._scheduler.wait(now, is_running=self._session is not None)

    def _update_wait_reason(self, cache: InformerCache, now: float, *, is_due: bool) -> None:
        """Set why a due run has to wait, and log a lost watch once; the finding of another run is logged already."""
        before, self._wait_reason = self._wait_reason, ""
        if is_due and cache.silence:
            self._wait_reason = _WATCH_LOST
            if before != _WATCH_LOST:
                self._emit("Waiting", _WATCH_LOST, is_warning=True)
        elif is_due and now < self._yields_until:
            self._wait_reason = _OTHER_RUN

    def _observation(self, observed: Observation) -> StackObservation:
        if not observed.needs and all(state.state is not State.FAILED for state in observed.states.values()):
            self._problem = None  # the cluster has recovered without a run
        is_about_to = bool(observed.needs - self._scheduler.pending_changes) and not self._is_suspended
        return self.request.observation(
            cluster_state=observed.cluster_state,
            states=observed.states,
            is_working=self._session is not None or is_about_to,
            wait_reason=self._wait_reason,
            problem=add_later_problem(self.rolled_back, self._problem),
        )

    def _start_run(self, observer: StackObserver, observed: Observation, now: float) -> None:
        inventory = self._target or self.inventory
        session = Session(inventory, observer=observer, rollback_to=self._rollback_to, leadership=self.leadership)
        session.add_listener(self._log)
        self._scheduler.on_start(now)
        try:
            if not session.cluster_plan().plan.is_empty:
                session.start()
                self._session = session
                self._emit("RunStarted", _pending_message(observed.needs))
                return
            self._problem = None
        except ProvisionError as error:
            self._problem = problem_of(error.findings)
        self._scheduler.on_finish(observed.needs, now, succeeded=self._problem is None)

    def _finish_run(self, session: Session, observed: Observation, now: float) -> None:
        """Record the result of a run that has ended. A lock of another run, such as a validation, is no failure."""
        problem, was_preempted = _run_problem(session), self._is_preempted
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
            self._rollback_to = 0  # a later repair is no rollback
        free_memory()
        if problem:
            self._emit(problem.reason, problem.message, is_warning=True)
        else:
            declared = f", with the versions of run {self._rollback_to}" if self.rolled_back else ""
            self._emit("RunSucceeded", f"the stack is as declared{declared}")
        self.reporter.metrics.record_run(now, succeeded=problem is None)
        self._scheduler.on_finish(observed.needs, now, succeeded=problem is None)

    def _emit(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self.on_event(StackEvent(reason=reason, message=message, stack=self.request.name, is_warning=is_warning))

    def _log(self, event: Event) -> None:
        place = " on ".join(filter(None, (event.component, event.node)))
        message = " ".join(filter(None, (place, event.state.value if place else "", event.step, event.message)))
        failed = event.state is State.FAILED
        self._emit("RunFailing" if failed else "Run", message, is_warning=failed)


def _pending_message(needs: Collection[str]) -> str:
    return f"to do: {join_limited(sorted(needs), _MAX_NAMED)}"


def _run_problem(session: Session) -> StackProblem | None:
    """Wait for the end of a run, and return its problem, if any."""
    try:
        return problem_of(session.explain())
    except ProvisionError as error:
        return problem_of(error.findings)
