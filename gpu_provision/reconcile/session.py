"""One run shared by many callers: pyinfra's operations, one per component, wait on the same run.

The reading that planning needs is made once and used until the run has written; `outcome` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gpu_provision.history import store
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.lease import LeaderElector
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.model.progress import Event, NodeState
from gpu_provision.rbac import review
from gpu_provision.reconcile.plan import ClusterPlan, blocking_findings, missing_permissions, read_and_plan

if TYPE_CHECKING:
    from gpu_provision.reconcile.observer import StackObserver
    from gpu_provision.reconcile.run import Outcome
    from gpu_provision.reconcile.run_thread import Executor, RunThread


@dataclass(slots=True)
class Session:
    """The work of one process on one stack.

    Attributes:
        revalidate: Whether validations run again although they have passed.
        host_drivers: What was just read of hosts, as in ClusterFacts; may be set until the reading is made.
        back_to: Number of the run whose inventory this is; 0 if it is no rollback.
        part: What to look after.
        resident: Who follows the stack already; what it knows is not read.
        deputy: Carries runs out if a controller looks after the stack; None to carry them out here in any case.
        leadership: What the right to write rests on besides the stack's lock; None for nothing.
        recorded: Number of the run that changed hosts alone; 0 if there was none.
    """

    inventory: Inventory
    revalidate: bool = False
    host_drivers: Mapping[str, str] = field(default_factory=dict)
    back_to: int = 0
    part: RunSelection = ALL
    resident: StackObserver | None = None
    deputy: Executor | None = None
    leadership: LeaderElector | None = None
    recorded: int = 0
    _cluster: KubeClient | None = None
    _reading: ClusterPlan | None = None
    _run: RunThread | None = None
    _unrecorded: tuple[Finding, ...] = ()
    _explained: tuple[Finding, ...] | None = None
    _listeners: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def cluster(self) -> KubeClient:
        """The connection; made when it is first asked for."""
        if self._cluster is None:
            self._cluster = connect(*resolve_context(self.inventory))
            self._cluster.leadership = self.leadership
            if self.inventory.cluster.sandbox:
                self._cluster.advice = "the sandbox has ended or was reset; run again: that starts it"
        return self._cluster

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Tell ``listener`` of every event from now on."""
        self._listeners.append(listener)

    def reading(self) -> ClusterPlan:
        """Return what was wanted and seen, and the plan; read once."""
        if self._reading is None:
            try:
                self._reading = self.resident.read(self.cluster) if self.resident else self._read()
            except ForbiddenError as refusal:
                raise review.missing_for_reading(self.cluster, self.inventory, refusal) from refusal
        return self._reading

    def _read(self) -> ClusterPlan:
        found = read_and_plan(
            self.cluster, self.inventory, revalidate=self.revalidate, host_drivers=self.host_drivers, part=self.part
        )
        return self.deputy.reviewed(self.cluster, found) if self.deputy else found

    @property
    def is_read(self) -> bool:
        """Whether the reading has been made."""
        return self._reading is not None

    def forget(self) -> None:
        """Read again when next asked: time has passed since the plan was shown."""
        if self._run is None:
            self._reading = None

    def refusals(self) -> tuple[Finding, ...]:
        """Return why a run may not begin: conflicts and rejected objects, found before the first write."""
        return blocking_findings(self.reading())

    def missing_permissions(self) -> Finding | None:
        """Return what the account lacks to carry the plan out; None if nothing is missing."""
        return missing_permissions(self.cluster, self.reading())

    def start(self) -> None:
        """Begin the run if it has not begun.

        Raises:
            RunFailedError: Planning found conflicts; nothing was written.
            ForbiddenError: Permissions are missing; nothing was written.
        """
        if self._run is not None:
            return
        if refused := self.refusals():
            raise RunFailedError(*refused)
        from gpu_provision.reconcile.run import Run
        from gpu_provision.reconcile.run_thread import RunThread

        reading = self.reading()
        if self.deputy and reading.plan.resource:
            self._run = RunThread(self.cluster, reading, self._tell, self.back_to, make=self.deputy.conduct)
        elif missing := self.missing_permissions():
            raise ForbiddenError(missing)
        else:
            live = self.resident.live(reading) if self.resident else None
            make = partial(Run, live=live)
            self._run = RunThread(self.cluster, reading, self._tell, self.back_to, make=make, live=live)
        self._run.start()

    def put_on_record(self, *, hosts: int) -> None:
        """Put a run on record that changed so many hosts, where the cluster was as declared."""
        from gpu_provision.history import recorder

        reading = self.reading()
        members = reading.observed.members
        spec = recorder.run_spec(
            reading.context.inventory, reading.plan, reading.desired, members, back_to=self.back_to
        )
        self.recorded, self._unrecorded = recorder.record_host_changes(
            self.cluster, spec, hosts, planned_at=reading.observed.lock_version
        )

    def wait(self, component: str, *, tick: Callable[[str], None] = lambda _: None) -> tuple[NodeState, ...]:
        """Wait until a component has settled everywhere; return what failed or is blocked of it.

        If something failed, the whole run is awaited first, so that whatever can be finished is finished. ``tick`` is
        told about once a second how far the component is: ``2/3 ready; t4-2: ImagePullBackOff``.

        Raises:
            ProvisionError: The run itself ended early.
        """
        if self._run is None:
            return ()
        if broken := self._run.wait_for(component, tick):
            self._run.join()
        return broken

    @property
    def is_running(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._run is not None and not self._run.is_over

    @property
    def is_following(self) -> bool:
        """Whether a run is under way that has applied its objects, and waits for nodes."""
        return self._run is not None and not self._run.is_over and self._run.is_following

    def cancel(self) -> None:
        """End the run, if there is one, after its current step; what it has written stays."""
        if self._run is not None:
            self._run.cancel()

    def finish(self) -> Outcome | None:
        """Wait for the end of the run; None if nothing was started. Raises ProvisionError if it ended early."""
        return self._run.join() if self._run else None

    def explain(self) -> tuple[Finding, ...]:
        """Return why the run did not end as declared, and what the plan found wrong; writes the run's record."""
        outcome = self.finish()
        planned = self.reading().plan.findings
        if outcome is None:
            return (*planned, *self._unrecorded)
        if self._explained is None:
            from gpu_provision.reconcile.run_thread import explain

            told = (item for item in planned if item.code not in _TOLD_BY_STATES)
            warnings = filter(None, [outcome.unrecorded])
            self._explained = (*outcome.told, *explain(self.cluster, outcome), *told, *warnings)
            if outcome.record.id:
                details = partial(store.run_details, outcome.plan, outcome.result, self._explained)
                store.write_local(outcome.record, details)
        return self._explained

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


_TOLD_BY_STATES = frozenset({"GP201"})
