"""A plan, a run or a removal of hosts and cluster: one half first, then the other with what that has found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, TypeVar

from gpu_provision.api.options import Words, components_of
from gpu_provision.api.results import StackPlan, StackRemoval, StackRun
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.codes import HOST_FAILED
from gpu_provision.model.findings import Finding, Refused, RunFailed, Severity, UsageError
from gpu_provision.model.inventory import Inventory, Part
from gpu_provision.model.plan import Plan, RemovalResult
from gpu_provision.model.progress import Event, RunResult, State
from gpu_provision.output import plan as plan_view
from gpu_provision.output.text import ranges
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan as planned_offline
from gpu_provision.planning.prepare import findings, prepare
from gpu_provision.planning.scope import part_of

if TYPE_CHECKING:
    from gpu_provision.model.plan import Drift
if TYPE_CHECKING:
    from gpu_provision.api.views import StackDrift
    from gpu_provision.model.plan import Drift

Listen = Callable[[Event], None]


_ClusterResult = TypeVar("_ClusterResult", RunResult, RemovalResult)


_READING = Event(component="", node="", state=State.PROGRESSING, message="reading hosts")


def ignore(_value: object) -> None:
    """Listen to nothing."""


def as_a_look(listen: Listen) -> Listen:
    """Return a listener for hosts that are only read: none of them makes progress or gets ready, but some may fail."""
    return lambda event: listen(event if event.state is State.FAILED else _READING)


def plan_offline(inventory: Inventory, part: Part) -> Plan:
    """Return what a run would change in an empty cluster; no cluster is asked."""
    context, desired = prepare(inventory, ClusterFacts(), part)
    return planned_offline(context, desired, Observed(cluster="offline", facts=ClusterFacts()), findings(context))


def plan(inventory: Inventory, *, on_hosts: HostsResult, part: Part, take_over: bool) -> Plan:
    """Return what a run would change in the cluster. Raises Unreachable, Refused."""
    from gpu_provision.operator.executor import StackDeputy
    from gpu_provision.reconcile.session import Session
    from gpu_provision.reconcile.tool_version import told

    session = Session(inventory, host_drivers=on_hosts.drivers, part=part, deputy=StackDeputy(force=take_over))
    found = session.reading().plan
    return replace(found, findings=(*found.findings, *told(session.cluster, session.reading())))


def apply(  # noqa: PLR0913 - all by name
    inventory: Inventory,
    *,
    on_hosts: HostsResult,
    back_to: int,
    part: Part,
    take_over: bool,
    revalidate: bool,
    planned: Callable[[Plan], None],
    listen: Listen,
) -> RunResult:
    """Make the cluster as declared and prove it. Raises what `gpu_provision.apply` raises."""
    from gpu_provision.operator.executor import StackDeputy
    from gpu_provision.reconcile.session import Session

    began = time.monotonic()
    session = Session(
        inventory,
        revalidate=revalidate,
        host_drivers=on_hosts.drivers,
        back_to=back_to,
        part=part,
        deputy=None if revalidate else StackDeputy(force=take_over),
    )
    session.listen(listen)
    reading = session.reading()
    planned(reading.plan)
    if refused := session.refusals():
        raise RunFailed(*refused)
    if not reading.plan.is_empty:
        session.start()
    elif on_hosts.changed:
        session.put_on_record(hosts=len(on_hosts.changed))
    outcome = session.finish()
    result = outcome.result if outcome else RunResult(run=session.recorded)
    seconds = time.monotonic() - began
    return _raise_on_errors(
        replace(result, requests=session.cluster.requests, seconds=seconds, findings=session.explain())
    )


def drift(inventory: Inventory, *, on_hosts: HostsResult) -> Drift:
    """Return what in the cluster is not as declared, and why. Raises Unreachable, Refused."""
    from gpu_provision.operator.executor import StackDeputy
    from gpu_provision.reconcile.drift import read
    from gpu_provision.reconcile.session import Session

    return read(Session(inventory, host_drivers=on_hosts.drivers, deputy=StackDeputy()))


def destroy(  # noqa: PLR0913 - all by name
    inventory: Inventory, *, crds: bool, evict: bool, timeout: int, dry_run: bool, listen: Listen
) -> RemovalResult:
    """Take the stack off the cluster, then audit what is left; a cluster without it costs no write.

    A resource that a controller looks after the stack by goes first, and the controller lets go of the stack.
    Raises what `gpu_provision.destroy` raises.
    """
    from gpu_provision.operator import release
    from gpu_provision.reconcile import (
        destroy_discovery,
        destroy_run,
        missing_permissions,
    )
    from gpu_provision.reconcile.session import Session

    def say(message: str) -> None:
        listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    cluster, terms = Session(inventory).cluster, destroy_discovery.Terms(crds=crds, evict=evict, seconds=timeout)
    work = destroy_run.Removing(cluster, inventory, destroy_discovery.look(cluster, inventory, terms), terms, listen)
    stack = release.of(cluster, inventory)
    if dry_run:
        return release.foretold(work.preview(), stack)
    if stack and not work.refusal():
        release.release(cluster, inventory.name, seconds=timeout, say=say)
        work = destroy_run.Removing(
            cluster, inventory, destroy_discovery.look(cluster, inventory, terms), terms, listen
        )
    wanted = destroy_discovery.to_carry_out(inventory, work.looked.plan.changes, evict=bool(work.looked.users))
    if work.looked.plan.stages and (missing := missing_permissions.missing_to_remove(cluster, inventory, wanted)):
        raise Refused(missing)
    done = release.warned(work.execute(), stack)
    return _raise_on_errors(replace(done, requests=cluster.requests))


def cluster_id(inventory: Inventory) -> str:
    """Return what no other cluster has: the uid of its namespace kube-system. Raises Unreachable, Refused."""
    from gpu_provision.kube.observe import NAMESPACE
    from gpu_provision.reconcile.session import Session

    found = Session(inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
    return str(found[0]["metadata"]["uid"]) if found else ""


def _raise_on_errors(result: _ClusterResult) -> _ClusterResult:
    """Return a result. Raises RunFailed, which has it, if it tells of errors."""
    if any(item.severity is Severity.ERROR for item in result.findings):
        failure = RunFailed(*result.findings)
        failure.result = result
        raise failure
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyJob:
    """The part of a stack that a removal takes off, and the terms.

    Attributes:
        limit: Names of the hosts; empty for all. With any, the cluster is left out.
        hosts: Whether hosts take part.
        cluster: Whether the cluster takes part.
        crds, evict, timeout: As in `gpu_provision.destroy`.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    hosts: bool = True
    cluster: bool = True
    crds: bool = False
    evict: bool = False
    timeout: int = 300

    def look(self, listen: Listen) -> StackRemoval:
        """Return what `carry_out` would do, and what stands against it; nothing is written."""
        in_cluster = self._of_cluster(listen, dry_run=True) if self._has_cluster else None
        on_hosts = self._of_hosts(listen, dry_run=True)
        return StackRemoval(inventory=self.inventory.name, dry_run=True, hosts=on_hosts, cluster=in_cluster)

    def carry_out(self, listen: Listen, *, removed: Callable[[RemovalResult | None], None] = ignore) -> StackRemoval:
        """Remove it, and return how that ended, also if something is left, which holds the hosts back.

        Args:
            removed: Called with what went from the cluster, before hosts are changed.

        Raises:
            ProvisionError: As `gpu_provision.destroy` says.
        """
        in_cluster = self._gone(listen) if self._has_cluster else None
        removed(in_cluster)
        is_clear = in_cluster is None or plan_view.removal_succeeded(in_cluster)
        on_hosts = self._of_hosts(listen, dry_run=False) if is_clear else NO_HOSTS
        return StackRemoval(
            inventory=self.inventory.name,
            dry_run=False,
            hosts=on_hosts,
            cluster=in_cluster,
            notes=() if is_clear else self._held_back(),
        )

    @property
    def _has_cluster(self) -> bool:
        return self.cluster and not self.limit

    @property
    def _has_hosts(self) -> bool:
        return self.hosts and has_host_phase(self.inventory)

    def _gone(self, listen: Listen) -> RemovalResult:
        try:
            return self._of_cluster(listen, dry_run=False)
        except RunFailed as failure:
            if not isinstance(failure.result, RemovalResult):
                raise
            return failure.result

    def _of_cluster(self, listen: Listen, *, dry_run: bool) -> RemovalResult:
        return destroy(
            self.inventory, crds=self.crds, evict=self.evict, timeout=self.timeout, dry_run=dry_run, listen=listen
        )

    def _of_hosts(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        if not self._has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import teardown

        heard = as_a_look(listen) if dry_run else listen
        return teardown(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard)

    def _held_back(self) -> tuple[Finding, ...]:
        from gpu_provision.destroy.findings import hosts_held_back

        return (hosts_held_back(),) if self._has_hosts else ()


class Halves(TypedDict):
    """Which half takes part, as the fields of `Work` and `Removal`."""

    hosts: bool
    cluster: bool


def halves(*, hosts_only: bool, cluster_only: bool) -> Halves:
    """Return which half takes part. Raises UsageError if neither would."""
    if hosts_only and cluster_only:
        what = "--hosts-only and --cluster-only exclude each other"
        raise UsageError(Finding(code=codes.USAGE, what=what, fix="leave one of the two out"))
    return {"hosts": not cluster_only, "cluster": not hosts_only}


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

    def plan(self, listen: Listen, *, offline: bool = False) -> StackPlan:
        """Return what `carry_out` would change; nothing is written."""
        part = self._part()
        on_hosts = NO_HOSTS if offline else self._prepare(listen, dry_run=True)
        return StackPlan(
            hosts=on_hosts,
            cluster=self._plan(on_hosts, part, offline=offline),
            notes=self.known,
            command=self.command,
        )

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
            RunFailed: The plan has conflicts; ``result`` has what was done on hosts.
            ProvisionError: As `gpu_provision.apply` says.
        """
        part = self._part()
        on_hosts = self._prepare(listen, dry_run=False)
        prepared(on_hosts)
        held_back = _held_back(on_hosts) if self.cluster else ()
        try:
            in_cluster = self._apply(on_hosts, part, planned, listen) if self.cluster and not held_back else None
        except RunFailed as failure:
            if not isinstance(failure.result, RunResult):
                failure.result = self._run(on_hosts, None, (*self.known, *failure.findings))
                raise
            in_cluster = failure.result
        return self._run(on_hosts, in_cluster, (*self.known, *self._recorded(on_hosts), *held_back))

    def drift(self, listen: Listen) -> StackDrift:
        """Return what is not as declared, and why; nothing is written."""
        from gpu_provision.api.views import StackDrift

        on_hosts = self._prepare(listen, dry_run=True)
        return StackDrift(hosts=on_hosts, cluster=self._drift(on_hosts))

    def cluster_id(self) -> str:
        """Return what no other cluster has; empty if the cluster takes no part."""
        return cluster_id(self.inventory) if self.cluster else ""

    def _part(self) -> Part:
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
        from gpu_provision.hosts.runner import prepare

        guard = None
        if self.inventory.may_reboot:
            from gpu_provision.reconcile.maintenance import NodeGuard

            guard = NodeGuard(self.inventory)
        heard = as_a_look(listen) if dry_run else listen
        return prepare(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, guard=guard)

    def _plan(self, on_hosts: HostsResult, part: Part, *, offline: bool) -> Plan:
        if not self.cluster:
            return self._nothing()
        if offline:
            return plan_offline(self.inventory, part)
        return plan(self.inventory, on_hosts=on_hosts, part=part, take_over=self.take_over)

    def _apply(self, on_hosts: HostsResult, part: Part, planned: Callable[[Plan], None], listen: Listen) -> RunResult:
        return apply(
            self.inventory,
            on_hosts=on_hosts,
            back_to=self.back_to,
            part=part,
            take_over=self.take_over,
            revalidate=self.revalidate,
            planned=planned,
            listen=listen,
        )

    def _drift(self, on_hosts: HostsResult) -> Drift:
        if not self.cluster:
            from gpu_provision.model.plan import Drift

            nothing = self._nothing()
            return Drift(inventory=nothing.inventory, release=nothing.release, cluster=nothing.cluster, differences=())
        return drift(self.inventory, on_hosts=on_hosts)

    def _run(self, on_hosts: HostsResult, in_cluster: RunResult | None, notes: tuple[Finding, ...]) -> StackRun:
        return StackRun(
            inventory=self.inventory.name, hosts=on_hosts, cluster=in_cluster, notes=notes, command=self.command
        )

    def _recorded(self, on_hosts: HostsResult) -> tuple[Finding, ...]:
        """Put a run on record that leaves the cluster alone; return a warning about what kept it from being there."""
        if self.cluster or not on_hosts.changed:
            return ()
        from gpu_provision.reconcile.recorder import put_alone_on_record

        failure = "; ".join(f"{host.name}: {host.reason}" for host in on_hosts.failed)
        return put_alone_on_record(self.inventory, len(on_hosts.changed), failure=failure, back_to=self.back_to)[1]

    def _nothing(self) -> Plan:
        return Plan(
            inventory=self.inventory.name,
            release=self.inventory.release,
            cluster="not asked",
            components=(),
            changes=(),
        )


def has_host_phase(inventory: Inventory) -> bool:
    """Return whether the host phase is on for any node."""
    return any(inventory.prerequisites_of(node).enabled for node in inventory.nodes)


def _held_back(on_hosts: HostsResult) -> tuple[Finding, ...]:
    """Return that hosts which are not as declared hold back the cluster phase; nothing if all are."""
    if not on_hosts.failed:
        return ()
    finding = Finding(
        code=HOST_FAILED,
        where=ranges(host.name for host in on_hosts.failed),
        what="the cluster phase was held back: these hosts are not as declared",
        fix="mend them and run again, or leave the hosts alone with --cluster-only",
    )
    return (finding,)
