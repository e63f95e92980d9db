"""One run in a thread: pyinfra's operations, one per component, wait for the same run.

`Outcome` has the state at the end of the run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gpu_provision.history import store
from gpu_provision.kube.client import KubeClient
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, LockedError, ProvisionError, attach_findings
from gpu_provision.model.history import Ending
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning.states import ComponentNode
from gpu_provision.reconcile.plan import ClusterPlan, blocking_findings, missing_permissions, read_and_plan

if TYPE_CHECKING:
    from gpu_provision.history.rollback import RollbackTarget
    from gpu_provision.reconcile.cluster_state import LiveState
    from gpu_provision.reconcile.run import Outcome

_STEP_SECONDS = 10


class RunHandle(Protocol):
    """One run; see `gpu_provision.reconcile.run.Run`."""

    @property
    def is_following(self) -> bool:
        """Whether all objects are applied, and the run watches them."""

    @property
    def continuation(self) -> str:
        """A sentence about work that continues without this process after a cancellation; empty for none."""

    def execute(self) -> Outcome:
        """Execute the plan, or follow its execution. Raises ProvisionError."""

    def unfinished_nodes(self) -> tuple[Finding, ...]:
        """Return warnings about unfinished nodes if the run has ended here; from any thread."""

    def cancel(self) -> None:
        """End after the current step; from any thread."""


RunFactory = Callable[..., RunHandle]
"""Makes the run of a plan, with the arguments of `Run`; writes nothing."""


class RunThread:
    """A run in its own thread, or greenlet under gevent, which calls the callbacks."""

    def __init__(  # noqa: PLR0913 - what a run is made from, and who makes it
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        tell: Callable[[Event], None],
        rollback_to: int,
        *,
        make: RunFactory,
        live: LiveState | None = None,
    ) -> None:
        """Prepare. ``make`` makes the run. The end of the run wakes the readers of ``live``."""
        self._cluster, self._reading, self._notify, self._live = cluster, reading, tell, live
        self._states: Mapping[ComponentNode, NodeState] = {}
        self._changed = threading.Condition()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._run = self._declared = make(
            cluster, reading, listen=tell, on_states=self._update_states, rollback_to=rollback_to
        )
        self._thread = threading.Thread(target=self._execute, name="gpu-provision", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _execute(self) -> None:
        try:
            outcome = self._run.execute()
            self._outcome = self._roll_back(outcome, outcome.rollback_target) if outcome.rollback_target else outcome
        except LockedError as error:  # the run that has the lock resumes this one
            self._error = error
        except ProvisionError as error:
            error.findings = (*error.findings, *self._run.unfinished_nodes())
            self._error = error
        except BaseException as error:  # noqa: BLE001 (handed to the caller that waits)
            self._error = error
        with self._changed:
            self._changed.notify_all()
        if self._live:
            self._live.cache.notify()

    def _roll_back(self, failed: Outcome, back: RollbackTarget) -> Outcome:
        """Roll back in a new run, whose failure is not rolled back."""
        from gpu_provision.reconcile.evidence import explain
        from gpu_provision.reconcile.run import Run

        findings = explain(self._cluster, failed)
        store.write_local(failed.record, lambda: store.run_details(failed.plan, failed.result, findings))
        reading = read_and_plan(self._cluster, back.inventory, host_drivers=self._reading.context.facts.host_drivers)
        missing = missing_permissions(self._cluster, reading)
        if problems := (*blocking_findings(reading), *filter(None, [missing])):
            return replace(
                failed, findings=(*problems, _rollback_finding(back, "the cluster could not be rolled back to"))
            )
        self._run = Run(
            self._cluster, reading, listen=self._notify, on_states=self._update_states, rollback_to=back.record.number
        )
        outcome = self._run.execute()
        went = (
            "the cluster was rolled back to" if outcome.record.ending is Ending.SUCCEEDED else "so did the rollback to"
        )
        return replace(
            outcome,
            result=_join_results(failed.result, outcome.result),
            findings=(*findings, _rollback_finding(back, went)),
        )

    def _update_states(self, states: Mapping[ComponentNode, NodeState]) -> None:
        with self._changed:
            self._states = states
            self._changed.notify_all()

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return self._outcome is not None or self._error is not None

    def wait_for(self, component: str, tick: Callable[[str], None]) -> tuple[NodeState, ...]:
        """Wait until a component has settled everywhere; see `Session.wait`."""
        from gpu_provision.reconcile.states import TERMINAL_STATES

        with self._cancel_on_interrupt():
            while not self.is_done:
                own = [state for state in self._states.values() if state.component == component]
                if own and all(state.state in TERMINAL_STATES for state in own):
                    break
                with self._changed:
                    self._changed.wait(1.0)
                tick(summary(self._states, component))
        if self._error is not None:
            raise self._error
        broken = {State.FAILED, State.BLOCKED}
        return tuple(state for state in self._states.values() if state.component == component and state.state in broken)

    @property
    def is_following(self) -> bool:
        """See `Run.is_following`; False for a rollback, as its end would leave nodes between two drivers."""
        return self._run is self._declared and self._run.is_following

    def cancel(self) -> None:
        """End the run after its current step."""
        self._run.cancel()

    @contextlib.contextmanager
    def _cancel_on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C cancel the run and wait until it has released the lock."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if self._run.continuation:
                interrupt.add_note(self._run.continuation)
            self._run.cancel()
            self._thread.join(_STEP_SECONDS)
            attach_findings(interrupt, *self._run.unfinished_nodes())
            raise

    def join(self) -> Outcome:
        """Wait for the end. Raises ProvisionError if it came early."""
        with self._cancel_on_interrupt(), self._changed:
            while not self.is_done:
                self._changed.wait(1.0)
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise ProvisionError(Finding(code="GP500", what="the run ended without a result"))
        return self._outcome


def summary(states: Mapping[ComponentNode, NodeState], component: str) -> str:
    """Return the progress of a component and the first reason to wait: ``2/3 ready; t4-2: ImagePullBackOff``."""
    own = [state for state in states.values() if state.component == component]
    counted = [state for state in own if state.node] or own
    ready = sum(state.state is State.READY for state in counted)
    awaited = next((state for state in own if state.state is not State.READY and state.reason), None)
    detail = f"; {awaited.node + ': ' if awaited.node else ''}{awaited.reason}" if awaited else ""
    return f"{ready}/{len(counted)} ready{detail}"


def _rollback_finding(back: RollbackTarget, what: str) -> Finding:
    number = back.record.number
    return Finding(
        code=codes.ROLLED_BACK,
        what=f"the rollout of the driver failed, and {what} the versions of run {number}",
        where=f"run {number}",
        consequence="the inventory still declares the failed content: the next apply retries it",
        fix=f"repair the cause and apply again; or revert the changes that gpu-provision diff {number} shows",
    )


def _join_results(first: RunResult, then: RunResult) -> RunResult:
    later = tuple(replace(each, at=round(each.at + first.seconds, 3)) for each in then.timeline)
    return replace(
        then,
        changed=first.changed + then.changed,
        requests=first.requests + then.requests,
        seconds=first.seconds + then.seconds,
        timeline=(*first.timeline, *later),
    )
