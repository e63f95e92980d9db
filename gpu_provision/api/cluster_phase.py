"""The cluster's half of each verb; `gpu_provision.api.phases` puts it together with that of the hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.findings import Refused, RunFailed, Severity
from gpu_provision.model.inventory import Inventory, Part
from gpu_provision.model.plan import Plan, RemovalResult
from gpu_provision.model.progress import Event, RunResult, State
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan as planned_offline
from gpu_provision.planning.prepare import findings, prepare

if TYPE_CHECKING:
    from gpu_provision.model.plan import Drift

Listen = Callable[[Event], None]

_Result = TypeVar("_Result", RunResult, RemovalResult)


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
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.session import Session
    from gpu_provision.reconcile.tool_version import told

    session = Session(inventory, host_drivers=on_hosts.drivers, part=part, deputy=OperatorExecutor(force=take_over))
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
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.session import Session

    began = time.monotonic()
    session = Session(
        inventory,
        revalidate=revalidate,
        host_drivers=on_hosts.drivers,
        back_to=back_to,
        part=part,
        deputy=None if revalidate else OperatorExecutor(force=take_over),
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
    return _unless_failed(
        replace(result, requests=session.cluster.requests, seconds=seconds, findings=session.explain())
    )


def drift(inventory: Inventory, *, on_hosts: HostsResult) -> Drift:
    """Return what in the cluster is not as declared, and why. Raises Unreachable, Refused."""
    from gpu_provision.operator.executor import OperatorExecutor
    from gpu_provision.reconcile.drift import read
    from gpu_provision.reconcile.session import Session

    return read(Session(inventory, host_drivers=on_hosts.drivers, deputy=OperatorExecutor()))


def destroy(  # noqa: PLR0913 - all by name
    inventory: Inventory, *, crds: bool, evict: bool, timeout: int, dry_run: bool, listen: Listen
) -> RemovalResult:
    """Take the stack off the cluster, then audit what is left; a cluster without it costs no write.

    A resource that a controller looks after the stack by goes first, and the controller lets go of the stack.
    Raises what `gpu_provision.destroy` raises.
    """
    from gpu_provision.operator import release
    from gpu_provision.operator.client import get_stack
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
    stack = get_stack(cluster, inventory)
    if dry_run:
        return release.preview_destroy(work.preview(), stack)
    if stack and not work.refusal():
        release.release(cluster, inventory.name, seconds=timeout, say=say)
        work = destroy_run.Removing(
            cluster, inventory, destroy_discovery.look(cluster, inventory, terms), terms, listen
        )
    wanted = destroy_discovery.to_carry_out(inventory, work.looked.plan.changes, evict=bool(work.looked.users))
    if work.looked.plan.stages and (missing := missing_permissions.missing_to_remove(cluster, inventory, wanted)):
        raise Refused(missing)
    done = release.with_warnings(work.execute(), stack)
    return _unless_failed(replace(done, requests=cluster.requests))


def cluster_id(inventory: Inventory) -> str:
    """Return what no other cluster has: the uid of its namespace kube-system. Raises Unreachable, Refused."""
    from gpu_provision.kube.observe import NAMESPACE
    from gpu_provision.reconcile.session import Session

    found = Session(inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
    return str(found[0]["metadata"]["uid"]) if found else ""


def _unless_failed(result: _Result) -> _Result:
    """Return a result. Raises RunFailed, which has it, if it tells of errors."""
    if any(item.severity is Severity.ERROR for item in result.findings):
        failure = RunFailed(*result.findings)
        failure.result = result
        raise failure
    return result
