"""The work of one process on one stack: its plan, which is made once, and its run, which many callers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gpu_provision.history import store
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.lease import LeaderElector
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.model.progress import Event, NodeState
from gpu_provision.rbac import review
from gpu_provision.reconcile.plan import ClusterPlan, blocking_findings, missing_permissions, read_and_plan
from gpu_provision.reconcile.run_thread import RunFactory, RunThread

if TYPE_CHECKING:
    from gpu_provision.reconcile.observer import StackObserver
    from gpu_provision.reconcile.run import Outcome

_REPORTED_BY_STATES = "GP201"
_REPORTED_BY_PLAN = codes.NO_DRIVER_TOOLKIT  # with the release, and the command that adds its image


class Executor(Protocol):
    """Executes runs through the operator, if the cluster has one."""

    def review_plan(self, cluster: KubeClient, reading: ClusterPlan) -> ClusterPlan:
        """Return the plan with the GPUStack that executes it, if any. Raises the errors of the API server."""

    @property
    def run_factory(self) -> RunFactory:
        """The factory of runs that the operator executes, for a reviewed plan."""


@dataclass(slots=True)
class Session:
    """The work of one process on one stack. ``host_drivers`` may be set until the plan is made."""

    inventory: Inventory
    revalidate: bool = False  # whether validations run again although they have passed
    host_drivers: Mapping[str, str] = field(default_factory=dict)  # as just read, see ClusterFacts
    rollback_to: int = 0  # number of the run whose inventory this is; 0 if it is no rollback
    selection: RunSelection = ALL
    observer: StackObserver | None = None  # replaces the read of the cluster
    executor: Executor | None = None  # for stacks that a controller manages
    leadership: LeaderElector | None = None  # the second fence of writes, besides the stack's lock
    recorded_run: int = 0  # number of the run that changed only hosts; 0 if there was none
    _cluster: KubeClient | None = None
    _reading: ClusterPlan | None = None
    _run: RunThread | None = None
    _unrecorded: tuple[Finding, ...] = ()
    _explained: tuple[Finding, ...] | None = None
    _listeners: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def cluster(self) -> KubeClient:
        """The client, which connects at the first use."""
        if self._cluster is None:
            self._cluster = connect(*resolve_context(self.inventory))
            self._cluster.leadership = self.leadership
            if self.inventory.cluster.sandbox:
                self._cluster.advice = "the sandbox has ended or was reset; run again: that starts it"
        return self._cluster

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` for every event from now on."""
        self._listeners.append(listener)

    def cluster_plan(self) -> ClusterPlan:
        """Return desired and observed state, and the plan; read once."""
        if self._reading is None:
            try:
                self._reading = self.observer.read(self.cluster) if self.observer else self._read()
            except ForbiddenError as refusal:
                raise review.missing_for_reading(self.cluster, self.inventory, refusal) from refusal
        return self._reading

    def _read(self) -> ClusterPlan:
        reading = read_and_plan(
            self.cluster,
            self.inventory,
            revalidate=self.revalidate,
            host_drivers=self.host_drivers,
            part=self.selection,
        )
        return self.executor.review_plan(self.cluster, reading) if self.executor else reading

    @property
    def has_plan(self) -> bool:
        """Whether the plan has been made."""
        return self._reading is not None

    def discard_plan(self) -> None:
        """Drop the plan, so that the next use reads the cluster again."""
        if self._run is None:
            self._reading = None

    def refusals(self) -> tuple[Finding, ...]:
        """Return why a run may not begin: conflicts and rejected objects, found before the first write."""
        return blocking_findings(self.cluster_plan())

    def missing_permissions(self) -> Finding | None:
        """Return the permissions that the account lacks to execute the plan; None if it has all."""
        return missing_permissions(self.cluster, self.cluster_plan())

    def start(self) -> None:
        """Start the run if it has not started.

        Raises before the first write: RunFailedError for conflicts, ForbiddenError for missing permissions.
        """
        if self._run is not None:
            return
        if refused := self.refusals():
            raise RunFailedError(*refused)
        reading, live = self.cluster_plan(), None
        if self.executor and reading.plan.resource:
            make = self.executor.run_factory
        elif missing := self.missing_permissions():
            raise ForbiddenError(missing)
        else:
            from gpu_provision.reconcile.run import Run

            live = self.observer.live_state(reading) if self.observer else None
            make = partial(Run, live=live)
        self._run = RunThread(self.cluster, reading, self._notify, self.rollback_to, make=make, live=live)
        self._run.start()

    def record_host_changes(self, *, hosts: int) -> None:
        """Record a run that changed so many hosts, and nothing in the cluster."""
        from gpu_provision.history import recorder

        reading = self.cluster_plan()
        members = reading.observed.members
        spec = recorder.run_spec(
            reading.context.inventory, reading.plan, reading.desired, members, rollback_to=self.rollback_to
        )
        self.recorded_run, self._unrecorded = recorder.record_host_changes(
            self.cluster, spec, hosts, planned_at=reading.observed.lock_version
        )

    def wait(self, component: str, *, tick: Callable[[str], None] = lambda _: None) -> tuple[NodeState, ...]:
        """Wait until a component has settled everywhere; return its failed and blocked states.

        After a failure, wait for the whole run. ``tick`` gets the progress of the component about once a second:
        ``2/3 ready; t4-2: ImagePullBackOff``.

        Raises ProvisionError: the run itself ended early.
        """
        if self._run is None:
            return ()
        if broken := self._run.wait_for(component, tick):
            self._run.join()
        return broken

    @property
    def is_running(self) -> bool:
        """Whether a run has started and not ended."""
        return self._run is not None and not self._run.is_done

    @property
    def is_following(self) -> bool:
        """Whether a run has applied its objects and waits for nodes."""
        return self._run is not None and not self._run.is_done and self._run.is_following

    def cancel(self) -> None:
        """End the run, if there is one, after its current step."""
        if self._run is not None:
            self._run.cancel()

    def finish(self) -> Outcome | None:
        """Wait for the end of the run; None if none has started. Raises ProvisionError if it ended early."""
        return self._run.join() if self._run else None

    def explain(self) -> tuple[Finding, ...]:
        """Return the findings about failures of the run and of the plan; writes the run's record."""
        outcome = self.finish()
        planned = self.cluster_plan().plan.findings
        if outcome is None:
            return (*planned, *self._unrecorded)
        if self._explained is None:
            from gpu_provision.reconcile.evidence import explain

            others = [item for item in planned if item.code != _REPORTED_BY_STATES]
            warnings = filter(None, [outcome.record_problem])
            found = merge_evidence(explain(self.cluster, outcome), others)
            self._explained = (*outcome.findings, *found, *warnings)
            if outcome.record.id:
                details = partial(store.run_details, outcome.plan, outcome.result, self._explained)
                store.write_local(outcome.record, details)
        return self._explained

    def _notify(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


def merge_evidence(of_run: Sequence[Finding], of_plan: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a run and of its plan; a failure that the plan expected is evidence of its finding."""
    expected = [each for each in of_run if each.code == _REPORTED_BY_PLAN]
    if all(each.code != _REPORTED_BY_PLAN for each in of_plan):
        return (*of_run, *of_plan)
    evidence = "; ".join(each.evidence for each in expected)
    return (
        *(each for each in of_run if each not in expected),
        *(
            replace(each, evidence="; ".join(filter(None, (each.evidence, evidence))))
            if each.code == _REPORTED_BY_PLAN
            else each
            for each in of_plan
        ),
    )
