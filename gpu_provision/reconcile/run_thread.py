"""A run in a thread of its own, or by the controller; its rollback if its rollout fails; and why it failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.failures import (
    FailedState,
    deferred_validation_findings,
    driver_kept_findings,
    failure_findings,
    stack_kept_findings,
    taint_findings,
)
from gpu_provision.diagnostics.pods import relevant_events
from gpu_provision.history import store
from gpu_provision.history.rollback import RollbackTarget
from gpu_provision.kube.client import KubeClient
from gpu_provision.model import codes
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.findings import Finding, LockedError, ProvisionError, attach_findings
from gpu_provision.model.history import Ending
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning import node_validation
from gpu_provision.planning.node_validation import has_startup_taint
from gpu_provision.planning.states import Key
from gpu_provision.planning.upgrades import KEEPS, OUTDATED, STAYS, is_kept
from gpu_provision.reconcile.observer import LiveState
from gpu_provision.reconcile.plan import ClusterPlan, blocking_findings, missing_permissions, read_and_plan
from gpu_provision.reconcile.run import Outcome, Run
from gpu_provision.reconcile.states import NOT_VALIDATED, TERMINAL_STATES
from gpu_provision.reconcile.steps import LOG_LINES, MOST_LOGS, pods_of
from gpu_provision.rollout.states import nodes_left_behind


def explain(cluster: KubeClient, outcome: Outcome) -> tuple[Finding, ...]:
    """Return what went wrong, and what is left half done; empty if every component is ready on every node."""
    states = outcome.result.states
    staying_there = [state for state in states if state.reason.startswith(STAYS)]
    failed = [state for state in states if state.state is State.FAILED and state not in staying_there]
    # Pods that were to be replaced after that of another node, which failed, are a consequence.
    outdated = [state for state in failed if state.reason.startswith(OUTDATED)]
    broken = {state.component for state in failed if state not in outdated}
    waiting = [state for state in outdated if state.component in broken]
    causes = [state for state in failed if state not in waiting]
    symptoms = [_symptom(cluster, outcome, state, read=index < MOST_LOGS) for index, state in enumerate(causes)]
    elsewhere = (state for state in states if not (is_kept(state) or state in staying_there))
    blocked = (state for state in elsewhere if state.state is State.BLOCKED)
    awaited = {state.node for state in states if state.component == node_validation.NAME and state.node}
    targets = outcome.seen.context.targets if awaited else ()
    tainted = [each.name for each in targets if each.name in awaited and each.facts and has_startup_taint(each.facts)]
    return (
        *failure_findings(symptoms, (*waiting, *blocked)),
        *driver_kept_findings(states, KEEPS),
        *stack_kept_findings(staying_there, STAYS),
        *deferred_validation_findings(states, NOT_VALIDATED),
        *taint_findings(tainted),
        *nodes_left_behind(outcome.seen.context.facts.nodes, outcome.seen.context.inventory.name),
    )


def _symptom(cluster: KubeClient, outcome: Outcome, state: NodeState, *, read: bool) -> FailedState:
    key = (state.component, state.node)
    shown = (each for each in outcome.result.evidence if not each.passed and (each.component, each.node) == key)
    if evidence := next(shown, None):
        return FailedState(state, evidence.pod, evidence.lines)
    if said := outcome.said.get(key):
        return FailedState(state, said.pod, said.lines)
    pod = next((pod for pod in pods_of(state, outcome.seen) if not pod_view.is_ready(pod)), None)
    if pod is None:
        return FailedState(state, "", ())
    told: tuple[str, ...] = ()
    container, ended = pod_view.failing_container(pod)
    if read:
        with contextlib.suppress(ProvisionError):
            told += relevant_events(pod, cluster.events(pod))
    if read and container:
        with contextlib.suppress(ProvisionError):
            told += cluster.log(ref_of(pod), container, lines=LOG_LINES, previous=ended)
    return FailedState(state, pod["metadata"]["name"], told or (pod_view.cause(pod),))


class RunHandle(Protocol):
    """One run; see `gpu_provision.reconcile.run.Run`."""

    @property
    def is_following(self) -> bool:
        """Whether all is written, and what becomes of it is followed."""

    @property
    def going_on(self) -> str:
        """What goes on without this process if the run is cancelled now, as a sentence; empty if nothing does."""

    def execute(self) -> Outcome:
        """Carry the plan out, or see it carried out. Raises ProvisionError."""

    def left_behind(self) -> tuple[Finding, ...]:
        """Return warnings about what stays half done if the run has ended here; from any thread."""

    def cancel(self) -> None:
        """End after the current step; from any thread."""


RunFactory = Callable[..., RunHandle]
"""Makes the run of a plan, with the arguments of `Run`; nothing is written."""


class Executor(Protocol):
    """A controller in the cluster that looks after stacks, if there is one."""

    def reviewed(self, cluster: KubeClient, reading: ClusterPlan) -> ClusterPlan:
        """Return a reading whose plan says by what resource it is carried out, if that is so, and what is against it.

        Raises UnreachableError, ForbiddenError.
        """

    @property
    def conduct(self) -> RunFactory:
        """Makes the run that is carried out there, of a reading that was reviewed."""


_STEP_SECONDS = 10


class RunThread:
    """A run in a thread of its own; under gevent, in a greenlet. Callbacks are called from there."""

    def __init__(  # noqa: PLR0913 - what a run is made from, and who makes it
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        tell: Callable[[Event], None],
        back_to: int,
        *,
        make: RunFactory = Run,
        live: LiveState | None = None,
    ) -> None:
        """Prepare; `start` begins. ``make`` makes the run; who else reads what is ``live`` is woken by the end."""
        self._cluster, self._reading, self._tell, self._live = cluster, reading, tell, live
        self._states: Mapping[Key, NodeState] = {}
        self._changed = threading.Condition()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._run = self._declared = make(cluster, reading, listen=tell, on_states=self._take, back_to=back_to)
        self._thread = threading.Thread(target=self._execute, name="gpu-provision", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _execute(self) -> None:
        try:
            outcome = self._run.execute()
            self._outcome = self._gone_back(outcome, outcome.back) if outcome.back else outcome
        except LockedError as error:  # the run that has the lock goes on with what this one left
            self._error = error
        except ProvisionError as error:
            error.findings = (*error.findings, *self._run.left_behind())
            self._error = error
        except BaseException as error:  # noqa: BLE001 (handed to the caller that waits)
            self._error = error
        with self._changed:
            self._changed.notify_all()
        if self._live:
            self._live.mirror.wake()

    def _gone_back(self, failed: Outcome, back: RollbackTarget) -> Outcome:
        """Carry out what was there before, as a run of its own, which is not rolled back in its turn."""
        told = explain(self._cluster, failed)
        store.write_local(failed.record, lambda: store.run_details(failed.plan, failed.result, told))
        reading = read_and_plan(self._cluster, back.inventory, host_drivers=self._reading.context.facts.host_drivers)
        missing = missing_permissions(self._cluster, reading)
        if problems := (*blocking_findings(reading), *filter(None, [missing])):
            return replace(failed, told=(*problems, _gone(back, "the cluster could not go back to")))
        self._run = Run(self._cluster, reading, listen=self._tell, on_states=self._take, back_to=back.record.number)
        outcome = self._run.execute()
        went = "the cluster is back at" if outcome.record.ending is Ending.SUCCEEDED else "so did the way back to"
        return replace(outcome, result=_both(failed.result, outcome.result), told=(*told, _gone(back, went)))

    def _take(self, states: Mapping[Key, NodeState]) -> None:
        with self._changed:
            self._states = states
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._outcome is not None or self._error is not None

    def wait_for(self, component: str, tick: Callable[[str], None]) -> tuple[NodeState, ...]:
        """Wait until a component has settled everywhere; see `Session.wait`."""
        with self._ending_on_interrupt():
            while not self.is_over and not self._settled(component):
                with self._changed:
                    self._changed.wait(1.0)
                tick(summary(self._states, component))
        if self._error is not None:
            raise self._error
        broken = {State.FAILED, State.BLOCKED}
        return tuple(state for state in self._states.values() if state.component == component and state.state in broken)

    @property
    def is_following(self) -> bool:
        """See `Run.is_following`; False for a rollback: to end it would leave nodes between two drivers."""
        return self._run is self._declared and self._run.is_following

    def cancel(self) -> None:
        """End the run after its current step."""
        self._run.cancel()

    @contextlib.contextmanager
    def _ending_on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C let the run finish its step and give the lock back before the interrupt goes on."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if self._run.going_on:
                interrupt.add_note(self._run.going_on)
            self._run.cancel()
            self._thread.join(_STEP_SECONDS)
            attach_findings(interrupt, *self._run.left_behind())
            raise

    def _settled(self, component: str) -> bool:
        own = [state for state in self._states.values() if state.component == component]
        return bool(own) and all(state.state in TERMINAL_STATES for state in own)

    def join(self) -> Outcome:
        """Wait for the end. Raises ProvisionError if it came early."""
        with self._ending_on_interrupt(), self._changed:
            while not self.is_over:
                self._changed.wait(1.0)
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise ProvisionError(Finding(code="GP500", what="the run ended without a result"))
        return self._outcome


def summary(states: Mapping[Key, NodeState], component: str) -> str:
    """Return how far a component is, and the first thing that is awaited: ``2/3 ready; t4-2: ImagePullBackOff``."""
    own = [state for state in states.values() if state.component == component]
    counted = [state for state in own if state.node] or own
    ready = sum(state.state is State.READY for state in counted)
    awaited = next((state for state in own if state.state is not State.READY and state.reason), None)
    detail = f"; {awaited.node + ': ' if awaited.node else ''}{awaited.reason}" if awaited else ""
    return f"{ready}/{len(counted)} ready{detail}"


def _gone(back: RollbackTarget, what: str) -> Finding:
    number = back.record.number
    return Finding(
        code=codes.ROLLED_BACK,
        what=f"the rollout of the driver failed, and {what} the versions of run {number}",
        where=f"run {number}",
        consequence="the inventory still declares what failed: the next apply tries it again",
        fix=f"mend what failed and apply again; or gpu-provision diff {number}, and take that back in the inventory",
    )


def _both(first: RunResult, then: RunResult) -> RunResult:
    """Return one result of two runs, one after the other; where everything stands is as the second one left it."""
    later = tuple(replace(each, at=round(each.at + first.seconds, 3)) for each in then.timeline)
    return replace(
        then,
        changed=first.changed + then.changed,
        requests=first.requests + then.requests,
        seconds=first.seconds + then.seconds,
        timeline=(*first.timeline, *later),
    )
