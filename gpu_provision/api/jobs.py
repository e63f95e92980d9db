"""Plans, runs and removals of hosts and cluster. A run begins with the hosts, a removal ends with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_provision.api.lock_wait import lock_waiter
from gpu_provision.api.options import with_ignored, with_timeout
from gpu_provision.api.results import StackPlan, StackRemoval, StackRun, raise_on_failure
from gpu_provision.api.selection import Words, select_components, select_nodes
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, ObservedState
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError, Severity, UsageError
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.model.openshift_specs import OPENSHIFT
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


def ignore_event(_value: object) -> None:
    """Ignore an event."""


def _event(message: str) -> Event:
    return Event(component="", node="", state=State.PROGRESSING, message=message)


def read_only_listener(listen: Listen) -> Listen:
    """Return a listener for hosts that are only read: it passes failures and replaces all other events."""
    reading = _event("reading hosts")
    return lambda event: listen(event if event.state is State.FAILED else reading)


def phase_fields(*, hosts_only: bool, cluster_only: bool) -> dict[str, Any]:
    """Return which phases take part, as fields of a job. Raises UsageError if neither does."""
    if hosts_only and cluster_only:
        what = "--hosts-only and --cluster-only exclude each other"
        raise UsageError(Finding(code=codes.USAGE, what=what, fix="leave one of the two out"))
    return {"hosts": not cluster_only, "cluster": not hosts_only}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The scope of a command: the inventory, its nodes and the phases."""

    inventory: Inventory
    limit: tuple[str, ...] = ()  # names of the nodes; empty for all
    hosts: bool = True
    cluster: bool = True
    lock_timeout: int = 0  # seconds to wait for the lock of another run

    @property
    def has_hosts(self) -> bool:
        """Whether the host phase takes part, and is on for any node."""
        return self.hosts and any(map(self.inventory.has_host_phase, self.inventory.nodes))

    @property
    def missing_hosts(self) -> tuple[Finding, ...]:
        """A warning if the host phase takes part alone, and has no host."""
        is_alone = self.hosts and not self.cluster
        return (_no_host_finding(self.inventory),) if is_alone and not self.has_hosts else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJob(_Job):
    """The scope and the options of a plan or a run."""

    targets: Words | None = None  # components in the user's words; None for all
    rollback_to: int = 0  # number of the run whose inventory this is; 0 if it is no rollback
    command: str = "apply"  # whose JSON document the result has
    extra_findings: tuple[Finding, ...] = ()  # what a reader should know besides
    take_over: bool = False  # whether fields of the stack's resource are taken over from other field managers
    revalidate: bool = False  # whether validations run again although they have passed

    def plan(self, listen: Listen, *, offline: bool = False) -> StackPlan:
        """Return what `carry_out` would change; nothing is written."""
        part, without = self._selection(), self._empty_cluster_fields()
        in_cluster = Plan(**without, components=(), changes=(), findings=self.missing_hosts)
        on_hosts = NO_HOSTS if offline else self._prepare(listen, dry_run=True)
        if self.cluster and offline:
            context, desired = prepare(self.inventory, ClusterFacts(), part)
            empty = ObservedState(cluster="offline", facts=ClusterFacts())
            in_cluster = planning.plan(context, desired, empty, inventory_findings(context))
        elif self.cluster:
            in_cluster = self._plan_cluster(on_hosts, part)
        return StackPlan(hosts=on_hosts, cluster=in_cluster, notes=self.extra_findings, command=self.command)

    def execute(
        self,
        listen: Listen,
        *,
        prepared: Callable[[HostsResult], None] = ignore_event,
        planned: Callable[[Plan], None] = ignore_event,
    ) -> StackRun:
        """Apply the inventory to hosts and cluster, and return the result, also of a failure.

        A failed host holds the cluster phase back.

        Args:
            prepared: Called with the result of the host phase, before the cluster phase begins.
            planned: Called with the plan of the cluster, before the first write.

        Raises:
            RunFailedError: The plan has conflicts; ``result`` has the changes of hosts.
            ProvisionError: As `gpu_provision.apply` says.
        """
        part = self._selection()
        takes_lock = self.cluster or self.inventory.rebootable_nodes
        call = lock_waiter(self.inventory, self.lock_timeout if takes_lock else 0, listen)
        on_hosts = call(lambda: self._prepare(listen, dry_run=False))
        prepared(on_hosts)
        run = StackRun(inventory=self.inventory.name, hosts=on_hosts, notes=self.extra_findings, command=self.command)
        if not self.cluster:
            return replace(run, notes=(*run.notes, *self.missing_hosts, *self._record_host_run(on_hosts)))
        if on_hosts.failed:
            from gpu_provision.nodes.workloads import vm_findings

            return replace(run, notes=(*run.notes, *vm_findings(self.inventory), _cluster_skipped(on_hosts)))
        plans = list[Plan]()

        def record_plan(plan: Plan) -> None:
            plans.append(plan)
            planned(plan)

        try:
            in_cluster = call(lambda: self._apply_cluster(on_hosts, part, record_plan, listen))
        except RunFailedError as failure:
            if not isinstance(failure.result, RunResult):
                failure.result = replace(run, notes=(*run.notes, *failure.findings))
                raise
            in_cluster = failure.result
        return replace(run, cluster=in_cluster, plan=plans[-1] if plans else None)

    def drift(self, listen: Listen) -> StackDrift:
        """Return every difference from the inventory, and its origin; read-only."""
        from gpu_provision.api.views import StackDrift
        from gpu_provision.model.plan import Drift

        on_hosts = self._prepare(listen, dry_run=True)
        if self.cluster:
            return StackDrift(hosts=on_hosts, cluster=self._read_drift(on_hosts))
        without = Drift(**self._empty_cluster_fields(), differences=(), findings=self.missing_hosts)
        return StackDrift(hosts=on_hosts, cluster=without)

    def _selection(self) -> RunSelection:
        """Return the selected nodes and components. Raises UsageError, before the first connection to a host."""
        if self.targets is None:
            return select_part(self.inventory, (), self.limit)
        if not self.cluster:
            what = "--hosts-only leaves the cluster alone, and with it every component"
            fix = "leave one of the two out"
            raise UsageError(Finding(code=codes.USAGE, where="--target", what=what, fix=fix))
        from gpu_provision.components import requirements

        return select_part(self.inventory, select_components(self.targets, requirements(self.inventory)), self.limit)

    def _prepare(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        """Run the host phase, or only read with ``dry_run``; return no hosts if they take no part."""
        if not self.has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import prepare as prepare_hosts

        guard, for_vms = None, None
        if self.inventory.rebootable_nodes:
            from gpu_provision.nodes.maintenance import NodeMaintenance

            guard = NodeMaintenance(self.inventory)
        if self.cluster:
            from gpu_provision.nodes.workloads import read_nodes_for_vms

            for_vms = read_nodes_for_vms(self.inventory)
        heard = read_only_listener(listen) if dry_run else listen
        return prepare_hosts(
            self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, maintenance=guard, for_vms=for_vms
        )

    def _record_host_run(self, on_hosts: HostsResult) -> tuple[Finding, ...]:
        """Record a run that skips the cluster; return a warning if the record fails."""
        if not on_hosts.changed:
            return ()
        from gpu_provision.history.recorder import record_host_only_run

        failure = "; ".join(f"{host.name}: {host.reason}" for host in on_hosts.failed)
        return record_host_only_run(
            self.inventory, len(on_hosts.changed), failure=failure, rollback_to=self.rollback_to
        )[1]

    def _empty_cluster_fields(self) -> dict[str, Any]:
        return {"inventory": self.inventory.name, "release": self.inventory.release, "cluster": "not asked"}

    def _session(self, on_hosts: HostsResult, **more: Any) -> Session:
        from gpu_provision.operator.executor import OperatorExecutor
        from gpu_provision.reconcile.session import Session

        by_operator = {"executor": OperatorExecutor(force=self.take_over)}
        return Session(self.inventory, host_drivers=on_hosts.drivers, **{**by_operator, **more})

    def _plan_cluster(self, on_hosts: HostsResult, part: RunSelection) -> Plan:
        session = self._session(on_hosts, selection=part)
        reading = session.cluster_plan()
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
        options = {"selection": part, "revalidate": self.revalidate, "rollback_to": self.rollback_to, **alone}
        session = self._session(on_hosts, **options)
        session.add_listener(listen)
        reading = session.cluster_plan()
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


def _no_host_finding(inventory: Inventory) -> Finding:
    why, fix = "host_prerequisites are off", "turn host_prerequisites on, or leave --hosts-only out"
    if inventory.cluster.platform == OPENSHIFT:
        why = "the Machine Config Operator of OpenShift prepares the hosts"
        fix = "without --hosts-only, gpu-provision plan and destroy --dry-run name the MachineConfigs and the reboots"
    return Finding(
        code=codes.NO_HOST,
        what=f"no host takes part: {why}",
        where="host_prerequisites",
        fix=fix,
        severity=Severity.WARNING,
    )


def _cluster_skipped(on_hosts: HostsResult) -> Finding:
    return Finding(
        code=codes.HOST_FAILED,
        where=ranges(host.name for host in on_hosts.failed),
        what="the cluster phase is held back: these hosts failed",
        fix="repair them and run again, or skip the hosts with --cluster-only",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyJob(_Job):
    """The scope and the options of `gpu_provision.destroy`."""

    crds: bool = False
    evict: bool = False
    timeout: int = 300

    def preview(self, listen: Listen) -> StackRemoval:
        """Return the changes of `carry_out`, and the findings that block it; read-only."""
        in_cluster = self._destroy(listen, dry_run=True) if self.cluster else None
        on_hosts = self._tear_down(listen, dry_run=True)
        notes = self.missing_hosts
        return StackRemoval(
            inventory=self.inventory.name, dry_run=True, hosts=on_hosts, cluster=in_cluster, notes=notes
        )

    def carry_out(
        self, listen: Listen, *, removed: Callable[[DestroyResult | None], None] = ignore_event
    ) -> StackRemoval:
        """Uninstall the stack, and return the result. The hosts are skipped if objects are left.

        Args:
            removed: Called with the result of the cluster phase, before hosts are changed.

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
            return replace(removal, hosts=self._tear_down(listen, dry_run=False), notes=self.missing_hosts)
        return replace(removal, notes=(hosts_skipped_finding(),) if self.has_hosts else ())

    def _tear_down(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        if not self.has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import teardown

        heard = read_only_listener(listen) if dry_run else listen
        return teardown(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard)

    def _destroy(self, listen: Listen, *, dry_run: bool) -> DestroyResult:
        """Uninstall the stack from the cluster, then verify that nothing is left; writes nothing without a stack.

        A GPUStack goes first, and the controller releases the stack.
        """
        from gpu_provision.destroy import discovery, runner
        from gpu_provision.operator import client, remote_run
        from gpu_provision.rbac import permissions, review
        from gpu_provision.reconcile.session import Session

        inventory, cluster = self.inventory, Session(self.inventory).cluster
        terms = discovery.DestroyOptions(crds=self.crds, evict=self.evict, seconds=self.timeout)

        def discover() -> runner.DestroyRunner:
            objects = discovery.discover(cluster, inventory, terms)
            return runner.DestroyRunner(cluster, inventory, objects, terms, listen)

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
    """Return a job from the user's options. Raises UsageError for a word that matches nothing."""
    return ApplyJob(**job_fields(with_timeout(with_ignored(inventory, ignored), timeout), **words))


def destroy_job(inventory: Inventory, **words: Any) -> DestroyJob:
    """Return a job from the user's options. Raises UsageError for a word that matches nothing."""
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
    """Return the fields of a job from the user's options. Raises UsageError for a word that matches nothing."""
    part = phase_fields(hosts_only=hosts_only, cluster_only=cluster_only)
    return {"inventory": inventory, "limit": select_nodes(inventory, limit), **part, **more}
