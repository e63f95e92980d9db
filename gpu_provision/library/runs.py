"""What a run would change, and the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_provision.library.outcome import unless_failed
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Event, RunResult
from gpu_provision.planning.narrowing import part_of
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan as planned
from gpu_provision.planning.prepare import findings, prepare

if TYPE_CHECKING:
    from gpu_provision.hosts.result import HostsResult


def plan(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    offline: bool = False,
    hosts: HostsResult | None = None,
    targets: Iterable[str] = (),
    limit: Iterable[str] = (),
    take_over: bool = False,
) -> Plan:
    """Return what a run would change, and by what resource if a controller looks after the stack.

    Args:
        offline: Plan for an empty cluster, without asking the real one.
        hosts: What the host phase found: with ``driver.enabled: auto`` it tells which nodes have a driver of their
            own. Without it their labels do.
        targets: Names of components; with what they require, no other is looked at. None for all.
        limit: Names of nodes; no other one's labels, driver and validations are looked at. None for all.
        take_over: Whether fields of the stack's resource are taken over from whoever else has set them.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    part = part_of(inventory, targets, limit)
    if offline:
        context, desired = prepare(inventory, ClusterFacts(), part)
        return planned(context, desired, Observed(cluster="offline", facts=ClusterFacts()), findings(context))
    from gpu_provision.engine.session import Session
    from gpu_provision.engine.tool_version import told
    from gpu_provision.operator.deputy import StackDeputy

    drivers = hosts.drivers if hosts else {}
    session = Session(inventory, host_drivers=drivers, part=part, deputy=StackDeputy(force=take_over))
    found = session.reading().plan
    return replace(found, findings=(*found.findings, *told(session.cluster, session.reading())))


def apply(  # noqa: PLR0913 - all but the inventory by name, and with a default
    inventory: Inventory,
    *,
    listen: Callable[[Event], None] = lambda _: None,
    planned: Callable[[Plan], None] = lambda _: None,
    revalidate: bool = False,
    hosts: HostsResult | None = None,
    back_to: int = 0,
    targets: Iterable[str] = (),
    limit: Iterable[str] = (),
    take_over: bool = False,
) -> RunResult:
    """Make the cluster as declared and prove it; a cluster that already is costs no write.

    Where a controller looks after the stack, its resource is changed instead, and what the controller makes of it is
    waited for.

    Args:
        listen: Called with every event, from a background thread.
        planned: Called with what is going to be changed, before anything is.
        revalidate: Run every vectorAdd again, also those that have passed for this content.
        hosts: As for `plan`.
        back_to: Number of the run whose inventory this is, for the record; see `going_back`.
        targets: As for `plan`.
        limit: As for `plan`.
        take_over: As for `plan`.

    Returns:
        What was changed, and the evidence.

    Raises:
        RunFailed: Something is not as declared; ``findings`` name node, component, cause and remedy.
        Locked: Another run writes.
        Refused: Permissions are missing; nothing was written.
        Unreachable, Rejected: As the API server answers.
    """
    from gpu_provision.engine.session import Session
    from gpu_provision.operator.deputy import StackDeputy

    session = Session(
        inventory,
        revalidate=revalidate,
        host_drivers=hosts.drivers if hosts else {},
        back_to=back_to,
        part=part_of(inventory, targets, limit),
        deputy=None if revalidate else StackDeputy(force=take_over),
    )
    session.listen(listen)
    reading = session.reading()
    planned(reading.plan)
    if refused := session.refusals():
        raise RunFailed(*refused)
    if not reading.plan.is_empty:
        session.start()
    elif hosts and hosts.changed:
        session.put_on_record(hosts=len(hosts.changed))
    outcome = session.finish()
    result = outcome.result if outcome else RunResult(run=session.recorded)
    return unless_failed(replace(result, requests=session.cluster.requests, findings=session.explain()))


def put_hosts_on_record(
    inventory: Inventory, hosts: HostsResult, *, back_to: int = 0
) -> tuple[int, tuple[Finding, ...]]:
    """Put a run on record that changed hosts and left the cluster alone: here, and in a cluster that has the stack.

    Args:
        hosts: How the host phase ended; one that changed nothing leaves no record.
        back_to: As for `apply`.

    Returns:
        Number of the run, 0 if it is on record here alone; and a warning about what kept it from being in the cluster.
    """
    from gpu_provision.engine.host_changes import put_alone_on_record

    if not hosts.changed:
        return 0, ()
    failure = "; ".join(f"{host.name}: {host.reason}" for host in hosts.failed)
    return put_alone_on_record(inventory, len(hosts.changed), failure=failure, back_to=back_to)
