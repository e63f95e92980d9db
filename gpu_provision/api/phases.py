"""A plan or a run of hosts and cluster: the host phase first, then the cluster phase with what it has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gpu_provision.api import cluster_phase, codes
from gpu_provision.api.cluster_phase import Listen, as_a_look, ignore
from gpu_provision.api.options import Words, components_of
from gpu_provision.api.results import StackPlan, StackRun
from gpu_provision.hosts.codes import HOST_FAILED
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model.findings import Finding, RunFailed, UsageError
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import RunResult
from gpu_provision.output.text import ranges
from gpu_provision.planning.scope import part_of

if TYPE_CHECKING:
    from gpu_provision.api.view_results import StackDrift
    from gpu_provision.model.plan import Drift


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
class Work:
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
        from gpu_provision.api.view_results import StackDrift

        on_hosts = self._prepare(listen, dry_run=True)
        return StackDrift(hosts=on_hosts, cluster=self._drift(on_hosts))

    def cluster_id(self) -> str:
        """Return what no other cluster has; empty if the cluster takes no part."""
        return cluster_phase.cluster_id(self.inventory) if self.cluster else ""

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
        from gpu_provision.hosts.runner import prepare

        guard = None
        if self.inventory.may_reboot:
            from gpu_provision.reconcile.maintenance import NodeGuard

            guard = NodeGuard(self.inventory)
        heard = as_a_look(listen) if dry_run else listen
        return prepare(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, guard=guard)

    def _plan(self, on_hosts: HostsResult, part: RunSelection, *, offline: bool) -> Plan:
        if not self.cluster:
            return self._nothing()
        if offline:
            return cluster_phase.plan_offline(self.inventory, part)
        return cluster_phase.plan(self.inventory, on_hosts=on_hosts, part=part, take_over=self.take_over)

    def _apply(
        self, on_hosts: HostsResult, part: RunSelection, planned: Callable[[Plan], None], listen: Listen
    ) -> RunResult:
        return cluster_phase.apply(
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
        return cluster_phase.drift(self.inventory, on_hosts=on_hosts)

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
