"""A plan, a run or a removal of hosts and cluster. A run begins with the hosts, a removal ends with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_provision.api.options import Words, components_of, nodes_of, with_ignored, with_timeout
from gpu_provision.api.results import StackPlan, StackRemoval, StackRun, raise_on_failure
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, ObservedState
from gpu_provision.model.findings import Finding, ForbiddenError, LockedError, RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.model.plan import DestroyResult, Plan
from gpu_provision.model.progress import Event, RunResult, State
from gpu_provision.output.findings import has_errors
from gpu_provision.output.text import ranges
from gpu_provision.planning import plan as planning
from gpu_provision.planning.prepare import inventory_findings, prepare, select_part

if TYPE_CHECKING:
    from gpu_provision.api.views import StackDrift
    from gpu_provision.model.plan import Drift
    from gpu_provision.reconcile.session import Session

Listen = Callable[[Event], None]
_Returned = TypeVar("_Returned")
_LOCK_POLL_SECONDS = 1.0


def ignore(_value: object) -> None:
    """Listen to nothing."""


def _event(message: str) -> Event:
    return Event(component="", node="", state=State.PROGRESSING, message=message)


def as_a_look(listen: Listen) -> Listen:
    """Return a listener for hosts that are only read: none of them makes progress or gets ready, but some may fail."""
    reading = _event("reading hosts")
    return lambda event: listen(event if event.state is State.FAILED else reading)


def halves(*, hosts_only: bool, cluster_only: bool) -> dict[str, Any]:
    """Return which half takes part, as the fields of a job. Raises UsageError if neither would."""
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
        listen(_event(f"waiting for the lock, which {held.holder} holds"))
        time.sleep(_LOCK_POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The part of an inventory that a command is about: which nodes, and which of the two phases."""

    inventory: Inventory
    limit: tuple[str, ...] = ()  # names of the nodes; empty for all
    hosts: bool = True
    cluster: bool = True
    lock_timeout: int = 0  # seconds to wait for the lock of another run

    @property
    def has_hosts(self) -> bool:
        """Whether the host phase takes part, and is on for any node."""
        return self.hosts and any(self.inventory.prerequisites_of(node).enabled for node in self.inventory.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJob(_Job):
    """The part of an inventory that a plan or a run looks after."""

    targets: Words | None = None  # components in the user's words; None for all
    back_to: int = 0  # number of the run whose inventory this is; 0 if it is no rollback
    command: str = "apply"  # whose JSON document the result has
    known: tuple[Finding, ...] = ()  # what a reader should know besides
    take_over: bool = False  # whether fields of the stack's resource are taken over from other field managers
    revalidate: bool = False  # whether validations run again although they have passed

    def plan(self, listen: Listen, *, offline: bool = False) -> StackPlan:
        """Return what `carry_out` would change; nothing is written."""
        part, in_cluster = self._part(), Plan(**self._nowhere(), components=(), changes=())
        on_hosts = NO_HOSTS if offline else self._prepare(listen, dry_run=True)
        if self.cluster and offline:
            context, desired = prepare(self.inventory, ClusterFacts(), part)
            empty = ObservedState(cluster="offline", facts=ClusterFacts())
            in_cluster = planning.plan(context, desired, empty, inventory_findings(context))
        elif self.cluster:
            in_cluster = self._plan_cluster(on_hosts, part)
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
        run = StackRun(inventory=self.inventory.name, hosts=on_hosts, notes=self.known, command=self.command)
        if not self.cluster:
            return replace(run, notes=(*run.notes, *self._put_on_record(on_hosts)))
        if on_hosts.failed:
            return replace(run, notes=(*run.notes, _held_back(on_hosts)))
        plans = list[Plan]()

        def keep(plan: Plan) -> None:
            plans.append(plan)
            planned(plan)

        try:
            in_cluster = call(lambda: self._apply_cluster(on_hosts, part, keep, listen))
        except RunFailedError as failure:
            if not isinstance(failure.result, RunResult):
                failure.result = replace(run, notes=(*run.notes, *failure.findings))
                raise
            in_cluster = failure.result
        return replace(run, cluster=in_cluster, plan=plans[-1] if plans else None)

    def drift(self, listen: Listen) -> StackDrift:
        """Return what is not as declared, and why; nothing is written."""
        from gpu_provision.api.views import StackDrift
        from gpu_provision.model.plan import Drift

        on_hosts = self._prepare(listen, dry_run=True)
        if self.cluster:
            return StackDrift(hosts=on_hosts, cluster=self._read_drift(on_hosts))
        return StackDrift(hosts=on_hosts, cluster=Drift(**self._nowhere(), differences=()))

    def _part(self) -> RunSelection:
        """Return what the words of the user mean. Raises UsageError, before the first host is asked."""
        if self.targets is None:
            return select_part(self.inventory, (), self.limit)
        if not self.cluster:
            what = "--hosts-only leaves the cluster alone, and with it every component"
            fix = "leave one of the two out"
            raise UsageError(Finding(code=codes.USAGE, where="--target", what=what, fix=fix))
        from gpu_provision.components import requirements

        return select_part(self.inventory, components_of(self.targets, requirements(self.inventory)), self.limit)

    def _prepare(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        """Make the hosts as declared, or only look with ``dry_run``; none if they take no part."""
        if not self.has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import prepare as prepare_hosts

        guard = None
        if self.inventory.may_reboot:
            from gpu_provision.nodes.maintenance import NodeMaintenance

            guard = NodeMaintenance(self.inventory)
        heard = as_a_look(listen) if dry_run else listen
        return prepare_hosts(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, maintenance=guard)

    def _put_on_record(self, on_hosts: HostsResult) -> tuple[Finding, ...]:
        """Put a run on record that leaves the cluster alone; return a warning about what kept it from being there."""
        if not on_hosts.changed:
            return ()
        from gpu_provision.history.recorder import record_host_only_run

        failure = "; ".join(f"{host.name}: {host.reason}" for host in on_hosts.failed)
        return record_host_only_run(self.inventory, len(on_hosts.changed), failure=failure, back_to=self.back_to)[1]

    def _nowhere(self) -> dict[str, Any]:
        return {"inventory": self.inventory.name, "release": self.inventory.release, "cluster": "not asked"}

    def _session(self, on_hosts: HostsResult, **more: Any) -> Session:
        from gpu_provision.operator.executor import OperatorExecutor
        from gpu_provision.reconcile.session import Session

        by_operator = {"executor": OperatorExecutor(force=self.take_over)}
        return Session(self.inventory, host_drivers=on_hosts.drivers, **{**by_operator, **more})

    def _plan_cluster(self, on_hosts: HostsResult, part: RunSelection) -> Plan:
        session = self._session(on_hosts, part=part)
        reading = session.reading()
        if reading.plan.is_empty or not reading.observed.members:
            return reading.plan
        from gpu_provision.history.rollback import version_warning

        warnings = version_warning(session.cluster, self.inventory)
        return replace(reading.plan, findings=(*reading.plan.findings, *warnings))

    def _apply_cluster(
        self, on_hosts: HostsResult, part: RunSelection, planned: Callable[[Plan], None], listen: Listen
    ) -> RunResult:
        began = time.monotonic()
        alone = {"executor": None} if self.revalidate else {}
        session = self._session(on_hosts, part=part, revalidate=self.revalidate, back_to=self.back_to, **alone)
        session.listen(listen)
        reading = session.reading()
        planned(reading.plan)
        if refused := session.refusals():
            raise RunFailedError(*refused)
        if not reading.plan.is_empty:
            session.start()
        elif on_hosts.changed:
            session.record_host_changes(hosts=len(on_hosts.changed))
        outcome = session.finish()
        result = outcome.result if outcome else RunResult(run=session.recorded_run)
        requests, seconds = session.cluster.requests, time.monotonic() - began
        return raise_on_failure(replace(result, requests=requests, seconds=seconds, findings=session.explain()))

    def _read_drift(self, on_hosts: HostsResult) -> Drift:
        from gpu_provision.reconcile.drift import read_drift

        return read_drift(self._session(on_hosts))


def _held_back(on_hosts: HostsResult) -> Finding:
    return Finding(
        code=codes.HOST_FAILED,
        where=ranges(host.name for host in on_hosts.failed),
        what="the cluster phase was held back: these hosts are not as declared",
        fix="repair them and run again, or leave the hosts alone with --cluster-only",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyJob(_Job):
    """The part of a stack that a removal takes off, and the terms of `gpu_provision.destroy`."""

    crds: bool = False
    evict: bool = False
    timeout: int = 300

    def look(self, listen: Listen) -> StackRemoval:
        """Return what `carry_out` would do, and what stands against it; nothing is written."""
        in_cluster = self._destroy(listen, dry_run=True) if self.cluster else None
        on_hosts = self._tear_down(listen, dry_run=True)
        return StackRemoval(inventory=self.inventory.name, dry_run=True, hosts=on_hosts, cluster=in_cluster)

    def carry_out(self, listen: Listen, *, removed: Callable[[DestroyResult | None], None] = ignore) -> StackRemoval:
        """Remove it, and return how that ended, also if something is left, which holds the hosts back.

        Args:
            removed: Called with what went from the cluster, before hosts are changed.

        Raises:
            ProvisionError: As `gpu_provision.destroy` says.
        """
        from gpu_provision.destroy.plan import hosts_skipped_finding

        in_cluster = None
        try:
            if self.cluster:
                call = lock_waiter(self.inventory, self.lock_timeout, listen)
                in_cluster = call(lambda: self._destroy(listen, dry_run=False))
        except RunFailedError as failure:
            if not isinstance(failure.result, DestroyResult):
                raise
            in_cluster = failure.result
        removed(in_cluster)
        removal = StackRemoval(inventory=self.inventory.name, dry_run=False, cluster=in_cluster)
        if in_cluster is None or not has_errors(in_cluster.findings):
            return replace(removal, hosts=self._tear_down(listen, dry_run=False))
        return replace(removal, notes=(hosts_skipped_finding(),) if self.has_hosts else ())

    def _tear_down(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        if not self.has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import teardown

        heard = as_a_look(listen) if dry_run else listen
        return teardown(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard)

    def _destroy(self, listen: Listen, *, dry_run: bool) -> DestroyResult:
        """Take the stack off the cluster, then audit what is left; a cluster without it costs no write.

        A resource that a controller looks after the stack by goes first, and the controller lets go of the stack.
        """
        from gpu_provision.destroy import discovery, runner
        from gpu_provision.operator import client, remote_run
        from gpu_provision.rbac import permissions, review
        from gpu_provision.reconcile.session import Session

        inventory, cluster = self.inventory, Session(self.inventory).cluster
        terms = discovery.DestroyOptions(crds=self.crds, evict=self.evict, seconds=self.timeout)

        def discover() -> runner.DestroyRunner:
            found = discovery.discover(cluster, inventory, terms)
            return runner.DestroyRunner(cluster, inventory, found, terms, listen)

        work, stack = discover(), client.get_stack(cluster, inventory)
        if dry_run:
            return remote_run.add_to_removal(work.preview(), stack, dry_run=True)
        if stack and not work.refusal():
            remote_run.release_stack(
                cluster, inventory.name, seconds=self.timeout, say=lambda message: listen(_event(message))
            )
            work = discover()
        wanted = permissions.for_destroy_plan(inventory, work.plan.changes, evict=bool(work.plan.users))
        if work.plan.stages and (missing := review.missing_finding(cluster, inventory, wanted, "--destroy")):
            raise ForbiddenError(missing)
        done = remote_run.add_to_removal(work.execute(), stack)
        return raise_on_failure(replace(done, requests=cluster.requests))


def apply_job(inventory: Inventory, *, ignored: Words = (), timeout: int | None = None, **words: Any) -> ApplyJob:
    """Return a job in the words of the user. Raises UsageError for words that mean nothing."""
    return ApplyJob(**job_fields(with_timeout(with_ignored(inventory, ignored), timeout), **words))


def destroy_job(inventory: Inventory, **words: Any) -> DestroyJob:
    """Return a job in the words of the user. Raises UsageError for words that mean nothing."""
    job = DestroyJob(**job_fields(inventory, **words))
    return replace(job, cluster=job.cluster and not job.limit)


def job_fields(
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: Words | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the fields of a job in the words of the user. Raises UsageError for words that mean nothing."""
    part = halves(hosts_only=hosts_only, cluster_only=cluster_only)
    return {"inventory": inventory, "limit": nodes_of(inventory, limit), **part, **more}
