"""How a stack and its hosts stand. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpu_provision.api import codes
from gpu_provision.api.cluster_phase import as_a_look, ignore
from gpu_provision.api.options import nodes_of, with_ignored
from gpu_provision.api.phases import Work, halves
from gpu_provision.api.view_results import (
    StackDrift,
    StackPreflight,
    StackStatus,
    StackVerification,
)
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event


def status(inventory: Inventory) -> StackStatus:
    """Return the stack as it stands in the cluster; hosts are not asked.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.reconcile.session import Session
    from gpu_provision.reconcile.status import status as read_status

    session = Session(inventory)
    return StackStatus.copy_of(read_status(session.cluster, session.reading()))


def drift(
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    listen: Callable[[Event], None] | None = None,
) -> StackDrift:
    """Return what is not as it was applied, on hosts and in the cluster, and who changed it; nothing is changed.

    Args:
        inventory: From `load`.
        hosts_only: Leave the cluster out.
        cluster_only: Leave the hosts out.
        limit: Only these hosts, as for `plan`; the cluster is left out then. None for all.
        listen: Called with each `Event` as hosts are read, from this thread.

    Raises:
        UsageError: ``limit`` names no node.
        RunFailed: Hosts cannot be read at all.
        Unreachable, Refused: The cluster cannot be asked.
    """
    taking_part = halves(hosts_only=hosts_only, cluster_only=cluster_only)
    names = nodes_of(inventory, limit)
    taking_part["cluster"] = taking_part["cluster"] and not names
    return Work(inventory=inventory, limit=names, **taking_part).drift(listen or ignore)


def preflight(
    inventory: Inventory,
    *,
    limit: str | Iterable[str] | None = None,
    ignored: str | Iterable[str] = (),
    offline: bool = False,
    listen: Callable[[Event], None] | None = None,
) -> StackPreflight:
    """Return what would go wrong: hosts, cluster and registry against the inventory; nothing is changed.

    Args:
        inventory: From `load`.
        limit: As for `plan`.
        ignored: As for `plan`.
        offline: Ask no registry for images.
        listen: Called with each `Event` as hosts are read, from this thread.

    Raises:
        UsageError: An argument names no node or finding.
        RunFailed: Hosts cannot be read at all.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.reconcile import preflight as reconcile_preflight

    wanted = with_ignored(inventory, ignored)
    if offline:
        wanted = replace(wanted, preflight=replace(wanted.preflight, registry=False))
    found = reconcile_preflight.preflight(wanted, limit=nodes_of(inventory, limit), listen=as_a_look(listen or ignore))
    return StackPreflight.copy_of(found, inventory=inventory.name)


def verify(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    tests: Iterable[str] = (),
    junit: str = "",
    listen: Callable[[Event], None] | None = None,
) -> StackVerification:
    """Run acceptance tests against hosts and cluster, in a process of their own; nothing is changed.

    They read the file of the inventory, not the value. A test that fails does not raise: see
    `StackVerification.passed`. It needs ``pip install 'gpu-provision[verify]'``.

    Args:
        inventory: From `load`.
        hosts_only: Leave the cluster out.
        cluster_only: Leave the hosts out.
        limit: As for `plan`.
        tests: Files or folders with pytest tests of your own; docs/verify.md shows how to write them.
        junit: File for JUnit XML; empty for none.
        listen: Called with an `Event` for each test as it ends, from this thread.

    Raises:
        UsageError: The packages of the extra are missing, ``limit`` names no node, or the inventory has no file.
        RunFailed: pytest could not run the tests.
    """
    from gpu_provision.verify import run

    if not inventory.path:
        what = "acceptance tests read the file of an inventory, and this one was made in Python"
        raise UsageError(Finding(code=codes.USAGE, what=what, fix="write it to a file and load that"))
    wanted = run.VerifyOptions(
        inventory=inventory.path,
        kubeconfig=inventory.cluster.kubeconfig or None,
        context=inventory.cluster.context or None,
        nodes=nodes_of(inventory, limit),
        tests=tuple(tests),
        junit=junit,
        **halves(hosts_only=hosts_only, cluster_only=cluster_only),
    )
    return StackVerification.copy_of(run.verify(wanted, listen or ignore), inventory=inventory.name)
