"""The library's face: plan, apply, status and render as values. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.findings import RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Event, RunResult, Status
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan as planned
from gpu_provision.planning.prepare import findings, prepare
from gpu_provision.planning.roles import Subject, roles

if TYPE_CHECKING:  # the engine imports what asks hosts and clusters
    from gpu_provision.engine.preflight import Judgement


def render(inventory: Inventory) -> dict[str, list[Manifest]]:
    """Return every component's manifests, from the inventory alone; nothing is asked of any cluster."""
    _, desired = prepare(inventory, ClusterFacts())
    return {component: list(manifests) for component, manifests in desired.items()}


def rbac(inventory: Inventory, subjects: Sequence[Subject] = (), *, read_only: bool = False) -> list[Manifest]:
    """Return the roles that an account needs for this inventory, and their bindings; no cluster is asked.

    Args:
        subjects: Who gets them; without any, there are roles and no bindings.
        read_only: What ``status`` and ``plan`` need, instead of what ``apply`` needs.
    """
    from gpu_provision.engine import needs

    name = f"gpu-provision-{inventory.name}{'-reader' if read_only else ''}"
    wanted = needs.to_look(inventory) if read_only else needs.everything(inventory)
    return roles(name, wanted, subjects)


def plan(inventory: Inventory, *, offline: bool = False) -> Plan:
    """Return what a run would change.

    Args:
        offline: Plan for an empty cluster, without asking the real one.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    if offline:
        context, desired = prepare(inventory, ClusterFacts())
        return planned(context, desired, Observed(cluster="offline", facts=ClusterFacts()), findings(context))
    from gpu_provision.engine.session import Session

    return Session(inventory).reading().plan


def apply(
    inventory: Inventory, *, listen: Callable[[Event], None] = lambda _: None, revalidate: bool = False
) -> RunResult:
    """Make the cluster as declared and prove it; a cluster that already is costs no write.

    Args:
        listen: Called with every event, from a background thread.
        revalidate: Run every vectorAdd again, also those that have passed for this content.

    Returns:
        What was changed, and the evidence.

    Raises:
        RunFailed: Something is not as declared; ``findings`` name node, component, cause and remedy.
        Locked: Another run writes.
        Refused: Permissions are missing; nothing was written.
        Unreachable, Rejected: As the API server answers.
    """
    from gpu_provision.engine.session import Session

    session = Session(inventory, revalidate=revalidate)
    session.listen(listen)
    reading = session.reading()
    if refused := session.refusals():
        raise RunFailed(*refused)
    if not reading.plan.is_empty:
        session.start()
    outcome = session.finish()
    result = outcome.result if outcome else RunResult()
    result = replace(result, requests=session.cluster.requests, findings=session.explain())
    if any(item.severity is Severity.ERROR for item in result.findings):
        failure = RunFailed(*result.findings)
        failure.result = result
        raise failure
    return result


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


def status(inventory: Inventory) -> Status:
    """Return the stack as it stands. Raises Unreachable, Refused."""
    from gpu_provision.engine.session import Session
    from gpu_provision.engine.status import status as read_status

    session = Session(inventory)
    return read_status(session.cluster, session.reading())
