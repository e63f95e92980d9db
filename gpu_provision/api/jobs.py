"""A plan or a run of hosts and cluster: the hosts first, then the cluster with what they have told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from gpu_provision.api.options import Words, components_of, nodes_of, with_ignored, with_timeout
from gpu_provision.api.results import StackPlan, StackRun
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, ObservedState
from gpu_provision.model.findings import Finding, LockedError, RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.model.plan import DestroyResult, Plan
from gpu_provision.model.progress import Event, RunResult, State
from gpu_provision.output.findings import has_errors
from gpu_provision.output.text import ranges
from gpu_provision.planning import plan as planning
from gpu_provision.planning.prepare import findings, part_of, prepare

if TYPE_CHECKING:
    from gpu_provision.api.views import StackDrift
    from gpu_provision.model.plan import Drift

Listen = Callable[[Event], None]


_ClusterResult = TypeVar("_ClusterResult", RunResult, DestroyResult)


_Returned = TypeVar("_Returned")


_LOCK_POLL_SECONDS = 1.0


_READING = Event(component="", node="", state=State.PROGRESSING, message="reading hosts")


def ignore(_value: object) -> None:
    """Listen to nothing."""


def as_a_look(listen: Listen) -> Listen:
    """Return a listener for hosts that are only read: none of them makes progress or gets ready, but some may fail."""
    return lambda event: listen(event if event.state is State.FAILED else _READING)


def has_host_phase(inventory: Inventory) -> bool:
    """Return whether the host phase is on for any node."""
    return any(inventory.prerequisites_of(node).enabled for node in inventory.nodes)


class Halves(TypedDict):
    """Which half takes part, as the fields of `ApplyJob` and `DestroyJob`."""

    hosts: bool
    cluster: bool


def halves(*, hosts_only: bool, cluster_only: bool) -> Halves:
    """Return which half takes part. Raises UsageError if neither would."""
    if hosts_only and cluster_only:
        what = "--hosts-only and --cluster-only exclude each other"
        raise UsageError(Finding(code=codes.USAGE, what=what, fix="leave one of the two out"))
    return {"hosts": not cluster_only, "cluster": not hosts_only}


def lock_waiter(inventory: Inventory, seconds: int, listen: Listen) -> Callable[[Callable[[], _Returned]], _Returned]:
    """Return what calls a function once no other run has the lock, and again if one was faster: for so many seconds.

    Then, and with 0 seconds at once, LockedError passes.
    """

    def wait_and_call(work: Callable[[], _Returned]) -> _Returned:
        end = time.monotonic() + seconds  # of each call: the host phase may take longer
        while True:
            if time.monotonic() < end:
                _await_lock(inventory, end, listen)
            try:
                return work()
            except LockedError as error:
                another_was_faster = {finding.code for finding in error.findings} <= {codes.LOCKED, codes.OUTRUN}
                if time.monotonic() >= end or not another_was_faster:
                    raise

    return wait_and_call


def _await_lock(inventory: Inventory, end: float, listen: Listen) -> None:
    """Return when the lock is free, when its holder is dead, which the next run finds out by itself, or at the end."""
    from gpu_provision.kube.lease import holder_is_dead
    from gpu_provision.kube.lock import TIMING, read_lock
    from gpu_provision.reconcile.session import Session

    cluster = Session(inventory).cluster
    while (held := read_lock(cluster, inventory).lock) and time.monotonic() < end:
        if holder_is_dead(held.holder) or (held.silent_seconds or 0) > TIMING.lease_seconds:
            return
        message = f"waiting for the lock, which {held.holder} holds"
        listen(Event(component="", node="", state=State.PROGRESSING, message=message))
        time.sleep(_LOCK_POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJob:
    """The part of an inventory that a plan or a run looks after.

    Attributes:
        limit: Names of the nodes; empty for all.
        targets: Components in the user's words; None for all.
        hosts: Whether the host phase takes part.
        cluster: Whether the cluster phase takes part.
        back_to: Number of the run whose inventory this is; 0 if it is no rollback.
        command: Whose JSON document the result has.
        known: What a reader should know besides.
        take_over: Whether fields of the stack's resource are taken over from other field managers.
        revalidate: Whether validations run again although they have passed.
        lock_timeout: Seconds to wait for the lock of another run.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    targets: Words | None = None
    hosts: bool = True
    cluster: bool = True
    back_to: int = 0
    command: str = "apply"
    known: tuple[Finding, ...] = ()
    take_over: bool = False
    revalidate: bool = False
    lock_timeout: int = 0

    def plan(self, listen: Listen, *, offline: bool = False) -> StackPlan:
        """Return what `carry_out` would change; nothing is written."""
        part, in_cluster = self._part(), self._nothing()
        on_hosts = NO_HOSTS if offline else self._prepare(listen, dry_run=True)
        if self.cluster:
            in_cluster = plan_offline(self.inventory, part) if offline else plan(self, on_hosts=on_hosts, part=part)
        return StackPlan(hosts=on_hosts, cluster=in_cluster, notes=self.known, command=self.command)

    def carry_out(
        self,
        listen: Listen,
        *,
        prepared: Callable[[HostsResult], None] = ignore,
        planned: Callable[[Plan], None] = ignore,
    ) -> StackRun:
        """Make hosts and cluster as declared, and return how that ended, also if something failed.

        Hosts that failed hold the cluster phase back.

        Args:
            prepared: Called with how the host phase ended, before the cluster phase begins.
            planned: Called with what is going to be changed in the cluster, before anything is.

        Raises:
            RunFailedError: The plan has conflicts; ``result`` has what was done on hosts.
            ProvisionError: As `gpu_provision.apply` says.
        """
        part = self._part()
        takes_lock = self.cluster or self.inventory.may_reboot
        call = lock_waiter(self.inventory, self.lock_timeout if takes_lock else 0, listen)
        on_hosts = call(lambda: self._prepare(listen, dry_run=False))
        prepared(on_hosts)
        held_back = _held_back(on_hosts) if self.cluster else ()
        in_cluster, plans = None, list[Plan]()

        def keep(plan: Plan) -> None:
            plans.append(plan)
            planned(plan)

        try:
            if self.cluster and not held_back:
                in_cluster = call(lambda: apply(self, on_hosts=on_hosts, part=part, planned=keep, listen=listen))
        except RunFailedError as failure:
            if not isinstance(failure.result, RunResult):
                failure.result = self._run(on_hosts, None, failure.findings)
                raise
            in_cluster = failure.result
        run = self._run(on_hosts, in_cluster, (*self._recorded(on_hosts), *held_back))
        return replace(run, plan=plans[-1] if plans else None)

    def drift(self, listen: Listen) -> StackDrift:
        """Return what is not as declared, and why; nothing is written."""
        from gpu_provision.api.views import StackDrift
        from gpu_provision.model.plan import Drift

        on_hosts = self._prepare(listen, dry_run=True)
        if self.cluster:
            return StackDrift(hosts=on_hosts, cluster=drift(self, on_hosts=on_hosts))
        blank = self._nothing()
        nothing = Drift(inventory=blank.inventory, release=blank.release, cluster=blank.cluster, differences=())
        return StackDrift(hosts=on_hosts, cluster=nothing)

    def cluster_id(self) -> str:
        """Return what no other cluster has, the uid of its namespace kube-system; empty if it takes no part."""
        if not self.cluster:
            return ""
        from gpu_provision.kube.observe import NAMESPACE
        from gpu_provision.reconcile.session import Session

        found = Session(self.inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
        return str(found[0]["metadata"]["uid"]) if found else ""

    def _part(self) -> RunSelection:
        """Return what the words of the user mean. Raises UsageError, before the first host is asked."""
        if self.targets is None:
            return part_of(self.inventory, (), self.limit)
        if not self.cluster:
            what = "--hosts-only leaves the cluster alone, and with it every component"
            fix = "leave one of the two out"
            raise UsageError(Finding(code=codes.USAGE, where="--target", what=what, fix=fix))
        from gpu_provision.components import requirements

        return part_of(self.inventory, components_of(self.targets, requirements(self.inventory)), self.limit)

    def _prepare(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        """Make the hosts as declared, or only look with ``dry_run``; none if they take no part."""
        if not (self.hosts and has_host_phase(self.inventory)):
            return NO_HOSTS
        from gpu_provision.hosts.runner import prepare as prepare_hosts

        guard = None
        if self.inventory.may_reboot:
            from gpu_provision.nodes.maintenance import NodeMaintenance

            guard = NodeMaintenance(self.inventory)
        heard = as_a_look(listen) if dry_run else listen
        return prepare_hosts(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, maintenance=guard)

    def _run(self, on_hosts: HostsResult, in_cluster: RunResult | None, notes: tuple[Finding, ...]) -> StackRun:
        name, notes = self.inventory.name, (*self.known, *notes)
        return StackRun(inventory=name, hosts=on_hosts, cluster=in_cluster, notes=notes, command=self.command)

    def _recorded(self, on_hosts: HostsResult) -> tuple[Finding, ...]:
        """Put a run on record that leaves the cluster alone; return a warning about what kept it from being there."""
        if self.cluster or not on_hosts.changed:
            return ()

        failure = "; ".join(f"{host.name}: {host.reason}" for host in on_hosts.failed)
        from gpu_provision.history.recorder import record_host_only_run

        return record_host_only_run(self.inventory, len(on_hosts.changed), failure=failure, back_to=self.back_to)[1]

    def _nothing(self) -> Plan:
        name, release = self.inventory.name, self.inventory.release
        return Plan(inventory=name, release=release, cluster="not asked", components=(), changes=())


def apply_job(  # noqa: PLR0913 - the options of the commands
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: Words | None = None,
    ignored: Words = (),
    timeout: int | None = None,
    **more: Any,
) -> ApplyJob:
    """Return a job in the words of the user; ``more`` are its fields. Raises UsageError for words that mean nothing."""
    return ApplyJob(
        inventory=with_timeout(with_ignored(inventory, ignored), timeout),
        limit=nodes_of(inventory, limit),
        **halves(hosts_only=hosts_only, cluster_only=cluster_only),
        **more,
    )


def _held_back(on_hosts: HostsResult) -> tuple[Finding, ...]:
    """Return that hosts which are not as declared hold back the cluster phase; nothing if all are."""
    if not on_hosts.failed:
        return ()
    finding = Finding(
        code=codes.HOST_FAILED,
        where=ranges(host.name for host in on_hosts.failed),
        what="the cluster phase was held back: these hosts are not as declared",
        fix="repair them and run again, or leave the hosts alone with --cluster-only",
    )
    return (finding,)


def plan_offline(inventory: Inventory, part: RunSelection) -> Plan:
    """Return what a run would change in an empty cluster; no cluster is asked."""
    context, desired = prepare(inventory, ClusterFacts(), part)
    return planning.plan(context, desired, ObservedState(cluster="offline", facts=ClusterFacts()), findings(context))


def plan(job: ApplyJob, *, on_hosts: HostsResult, part: RunSelection) -> Plan:
    """Return what a run would change in the cluster. Raises UnreachableError, ForbiddenError."""
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.session import Session

    deputy = OperatorExecutor(force=job.take_over)
    session = Session(job.inventory, host_drivers=on_hosts.drivers, part=part, deputy=deputy)
    reading = session.reading()
    if reading.plan.is_empty or not reading.observed.members:
        return reading.plan
    from gpu_provision.history.rollback import version_warning

    warnings = version_warning(session.cluster, job.inventory)
    return replace(reading.plan, findings=(*reading.plan.findings, *warnings))


def apply(
    job: ApplyJob, *, on_hosts: HostsResult, part: RunSelection, planned: Callable[[Plan], None], listen: Listen
) -> RunResult:
    """Make the cluster as declared and prove it. Raises what `gpu_provision.apply` raises."""
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.session import Session

    began = time.monotonic()
    session = Session(
        job.inventory,
        revalidate=job.revalidate,
        host_drivers=on_hosts.drivers,
        back_to=job.back_to,
        part=part,
        deputy=None if job.revalidate else OperatorExecutor(force=job.take_over),
    )
    session.listen(listen)
    reading = session.reading()
    planned(reading.plan)
    if refused := session.refusals():
        raise RunFailedError(*refused)
    if not reading.plan.is_empty:
        session.start()
    elif on_hosts.changed:
        session.put_on_record(hosts=len(on_hosts.changed))
    outcome = session.finish()
    result = outcome.result if outcome else RunResult(run=session.recorded)
    requests, seconds = session.cluster.requests, time.monotonic() - began
    return raise_on_errors(replace(result, requests=requests, seconds=seconds, findings=session.explain()))


def drift(job: ApplyJob, *, on_hosts: HostsResult) -> Drift:
    """Return what in the cluster is not as declared, and why. Raises UnreachableError, ForbiddenError."""
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.drift import read_drift
    from gpu_provision.reconcile.session import Session

    return read_drift(Session(job.inventory, host_drivers=on_hosts.drivers, deputy=OperatorExecutor()))


def raise_on_errors(result: _ClusterResult) -> _ClusterResult:
    """Return a result. Raises RunFailedError, which has it, if it tells of errors."""
    if has_errors(result.findings):
        failure = RunFailedError(*result.findings)
        failure.result = result
        raise failure
    return result
