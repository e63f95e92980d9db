"""The library's face: plan, apply, status and render as values. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.drift import Drift
from gpu_provision.model.findings import Finding, Refused, RunFailed, Severity
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Change, Plan
from gpu_provision.model.progress import Event, Lock, RunResult, State, Status
from gpu_provision.model.removal import RemovalResult
from gpu_provision.planning.narrowing import part_of
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan as planned
from gpu_provision.planning.prepare import findings, prepare
from gpu_provision.planning.roles import Subject, roles

if TYPE_CHECKING:  # the engine imports what asks hosts and clusters
    from gpu_provision.adoption.plan import Adoption
    from gpu_provision.engine.deputy import Deputy
    from gpu_provision.engine.preflight import Judgement
    from gpu_provision.hosts.result import HostsResult

_Result = TypeVar("_Result", RunResult, RemovalResult)


def render(inventory: Inventory) -> dict[str, list[Manifest]]:
    """Return every component's manifests, from the inventory alone; nothing is asked of any cluster."""
    _, desired = prepare(inventory, ClusterFacts())
    return {component: list(manifests) for component, manifests in desired.items()}


def rbac(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    subjects: Sequence[Subject] = (),
    *,
    read_only: bool = False,
    destroy: bool = False,
    adopt: bool = False,
    operator: bool = False,
) -> list[Manifest]:
    """Return the roles that an account needs for this inventory, and their bindings; no cluster is asked.

    Args:
        subjects: Who gets them; without any, there are roles and no bindings.
        read_only: What ``status`` and ``plan`` need, instead of what ``apply`` needs.
        destroy: What ``destroy`` needs.
        adopt: What ``adopt`` needs, which is all that ``apply`` needs, and more.
        operator: What ``apply`` needs where a controller looks after the stack.
    """
    from gpu_provision.engine import adoption_needs, needs, removal_needs

    if adopt:
        return roles(f"gpu-provision-{inventory.name}-adopter", adoption_needs.everything(inventory), subjects)
    if destroy:
        return roles(f"gpu-provision-{inventory.name}-remover", removal_needs.everything(inventory), subjects)
    if operator:
        from gpu_provision.operator.pulse import HOME
        from gpu_provision.operator.rights import of_editor

        return roles(f"gpu-provision-{inventory.name}-editor", of_editor(inventory, *HOME), subjects)
    name = f"gpu-provision-{inventory.name}{'-reader' if read_only else ''}"
    wanted = needs.to_look(inventory) if read_only else needs.everything(inventory)
    return roles(name, wanted, subjects)


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

    drivers = hosts.drivers if hosts else {}
    session = Session(inventory, host_drivers=drivers, part=part, deputy=_deputy(force=take_over))
    found = session.reading().plan
    return replace(found, findings=(*found.findings, *told(session.cluster, session.reading())))


def _deputy(*, force: bool = False) -> Deputy:
    from gpu_provision.operator.deputy import StackDeputy

    return StackDeputy(force=force)


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

    session = Session(
        inventory,
        revalidate=revalidate,
        host_drivers=hosts.drivers if hosts else {},
        back_to=back_to,
        part=part_of(inventory, targets, limit),
        deputy=None if revalidate else _deputy(force=take_over),
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
    return _unless_failed(replace(result, requests=session.cluster.requests, findings=session.explain()))


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


def _unless_failed(result: _Result) -> _Result:
    """Return a result. Raises RunFailed, which has it, if it tells of errors."""
    if any(item.severity is Severity.ERROR for item in result.findings):
        failure = RunFailed(*result.findings)
        failure.result = result
        raise failure
    return result


def drift(inventory: Inventory, *, hosts: HostsResult | None = None) -> Drift:
    """Return what in the cluster is not as declared, and why: see `gpu_provision.model.drift`. Writes nothing.

    Args:
        hosts: As for `plan`.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine import drift as engine
    from gpu_provision.engine.session import Session

    return engine.read(Session(inventory, host_drivers=hosts.drivers if hosts else {}, deputy=_deputy()))


def cluster_id(inventory: Inventory) -> str:
    """Return what no other cluster has: the uid of its namespace kube-system. Raises Unreachable, Refused."""
    from gpu_provision.cluster.observe import NAMESPACE
    from gpu_provision.engine.session import Session

    found = Session(inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
    return str(found[0]["metadata"]["uid"]) if found else ""


def destroy(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    crds: bool = False,
    evict: bool = False,
    timeout: int = 300,
    dry_run: bool = False,
    listen: Callable[[Event], None] = lambda _: None,
) -> RemovalResult:
    """Take the stack off the cluster, then audit what is left; a cluster without it costs no write.

    A resource that a controller looks after the stack by goes first, and the controller lets go of the stack.

    Hosts are not touched: gpu_provision.hosts.run.teardown makes them as they were.

    Args:
        crds: Remove CustomResourceDefinitions, too, unless others have objects of them.
        evict: Evict pods that use GPUs, as their budgets allow; without it they forbid the removal.
        timeout: Seconds that each stage may take.
        dry_run: Return what would be done, and why it would be refused.
        listen: Called with every event.

    Raises:
        RunFailed: Pods use GPUs and nothing was removed, or something is left; ``result`` has what was done.
        Locked: Another run writes.
        Refused: Permissions are missing; nothing was written.
        Unreachable: The API server does not answer.
    """
    from gpu_provision.engine import access, removal_look, removal_needs, removing
    from gpu_provision.engine.session import Session
    from gpu_provision.operator import leaving

    cluster, terms = Session(inventory).cluster, removal_look.Terms(crds=crds, evict=evict, seconds=timeout)
    work = removing.Removing(cluster, inventory, removal_look.look(cluster, inventory, terms), terms, listen)
    stack = leaving.of(cluster, inventory)
    if dry_run:
        return leaving.foretold(work.preview(), stack)
    if stack and not work.refusal():
        leaving.release(cluster, inventory.name, seconds=timeout, say=_sayer(listen))
        work = removing.Removing(cluster, inventory, removal_look.look(cluster, inventory, terms), terms, listen)
    wanted = removal_needs.to_carry_out(inventory, work.looked.plan.changes, evict=bool(work.looked.users))
    if work.looked.plan.stages and (missing := access.missing_to_remove(cluster, inventory, wanted)):
        raise Refused(missing)
    return _unless_failed(replace(work.execute(), requests=cluster.requests))


def _sayer(listen: Callable[[Event], None]) -> Callable[[str], None]:
    return lambda message: listen(Event(component="", node="", state=State.PROGRESSING, message=message))


def preflight(
    inventory: Inventory, *, limit: Iterable[str] = (), listen: Callable[[Event], None] = lambda _: None
) -> Judgement:
    """Return what would go wrong, without changing anything: hosts, cluster and registry against the inventory.

    Args:
        limit: Names of nodes; none for all.
        listen: Called as hosts are read.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
        UsageError: A name in ``limit`` is no node of the inventory.
        RunFailed: Hosts cannot be read at all: pyinfra itself broke down.
    """
    from gpu_provision.engine import preflight as engine

    return engine.preflight(inventory, limit=tuple(limit), listen=listen)


def adoption(inventory: Inventory) -> Adoption:
    """Return what taking a cluster over from the GPU Operator would do; nothing is written.

    Raises:
        RunFailed: A controller looks after the stack.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine.adoption_run import planned as planned_adoption
    from gpu_provision.engine.session import Session
    from gpu_provision.operator import leaving

    session = Session(inventory)
    if problems := leaving.against_adoption(session.cluster, inventory):
        raise RunFailed(*problems)
    return planned_adoption(session)


def adopt(inventory: Inventory, *, listen: Callable[[Event], None] = lambda _: None) -> RunResult:
    """Take a cluster over from the GPU Operator: stop it, make its objects ours, apply, and take the rest of it away.

    A driver that is, in effect, the one that is declared goes on running. Whoever comes after a killed process goes on.

    Raises:
        RunFailed: Something stands against it, nothing was written; or something is not as declared afterwards.
        Locked, Refused, Unreachable, Rejected: As for `apply`.
    """
    from gpu_provision.engine import adoption_run
    from gpu_provision.engine.session import Session
    from gpu_provision.operator import leaving

    session = Session(inventory)
    if problems := leaving.against_adoption(session.cluster, inventory):
        raise RunFailed(*problems)
    adoption_run.hand_over(session, listen)
    result = apply(inventory, listen=listen)
    adoption_run.finish(Session(inventory), listen)
    return result


def status(inventory: Inventory) -> Status:
    """Return the stack as it stands. Raises Unreachable, Refused."""
    from gpu_provision.engine.session import Session
    from gpu_provision.engine.status import status as read_status

    session = Session(inventory)
    return read_status(session.cluster, session.reading())


def unlock(
    inventory: Inventory,
    *,
    force: bool = False,
    agreed: Callable[[Lock], bool] = lambda _: True,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Lock | None, bool]:
    """Take the lock away from a run that is gone.

    Args:
        force: Also from one that lives; it ends then.
        agreed: Asked before, with whom this is about.
        say: Told what is waited for: whether a run elsewhere lives shows only as time passes.

    Returns:
        Who held the lock, None if nobody did; and whether it was taken away.

    Raises:
        Locked: The run that holds it lives, or is a controller's, which would take it again.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.cluster.lock import free
    from gpu_provision.engine.session import Session
    from gpu_provision.operator import leaving

    cluster = Session(inventory).cluster

    def asked(lock: Lock) -> bool:
        leaving.unless_controllers(cluster, inventory, lock)
        return agreed(lock)

    held, version = free(cluster, inventory, force=force, agreed=asked, on_wait=say)
    return held, bool(version)


def history(inventory: Inventory) -> History:
    """Return the runs of the stack that wrote something, as they are on record. Raises Unreachable, Refused."""
    from gpu_provision.engine import history as records
    from gpu_provision.engine.session import Session

    return records.read(Session(inventory).cluster, inventory)


def meaning(before: Record, after: Record | Inventory, inventory: Inventory) -> tuple[Change, ...] | None:
    """Return what changes for objects from the inventory of one run to another, or to an inventory.

    None if one of them cannot be used today. Nothing is asked of any cluster.

    Args:
        inventory: As it is now; it has the secrets, which no record has.
    """
    from gpu_provision.inventory.again import as_then
    from gpu_provision.planning.between import between

    old = as_then(before.text, inventory, name=f"run {before.number}")
    new = as_then(after.text, inventory, name=f"run {after.number}") if isinstance(after, Record) else after
    return between(render(old), render(new)) if old and new else None


def going_back(inventory: Inventory, number: int | None = None) -> tuple[Inventory, Record, tuple[Finding, ...]]:
    """Return the inventory of an earlier run on the machines of this one, that run, and what a reader should know.

    Args:
        inventory: As it is now: names the cluster and the machines, and has the secrets, which no record has.
        number: Of the run; None for the newest that succeeded with another inventory than the last run's.

    Raises:
        UsageError: There is no such run.
        RunFailed: Its inventory is not on record, or lacks secrets.
        InvalidInventory: It is not valid for this version of the tool.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine import history as records

    found = history(inventory)
    record = records.before_last(found) if number is None else records.chosen(found, number)
    then, findings = records.inventory_of(record, inventory)
    return then, record, findings


def rollback(
    inventory: Inventory,
    number: int | None = None,
    *,
    listen: Callable[[Event], None] = lambda _: None,
    hosts: HostsResult | None = None,
    take_over: bool = False,
) -> RunResult:
    """Make the cluster as an earlier run declared it, and prove it. Arguments and errors: `going_back`, `apply`."""
    then, record, _ = going_back(inventory, number)
    return apply(then, listen=listen, hosts=hosts, back_to=record.number, take_over=take_over)
