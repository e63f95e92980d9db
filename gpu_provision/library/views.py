"""How a stack and its hosts stand. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpu_provision.model.drift import Drift
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, Status

if TYPE_CHECKING:  # the engine imports what asks hosts and clusters
    from gpu_provision.engine.preflight import Judgement
    from gpu_provision.hosts.result import HostsResult


def status(inventory: Inventory) -> Status:
    """Return the stack as it stands. Raises Unreachable, Refused."""
    from gpu_provision.engine.session import Session
    from gpu_provision.engine.status import status as read_status

    session = Session(inventory)
    return read_status(session.cluster, session.reading())


def drift(inventory: Inventory, *, hosts: HostsResult | None = None) -> Drift:
    """Return what in the cluster is not as declared, and why: see `gpu_provision.model.drift`. Writes nothing.

    Args:
        hosts: As for `plan`.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine import drift as engine
    from gpu_provision.engine.session import Session
    from gpu_provision.operator.deputy import StackDeputy

    return engine.read(Session(inventory, host_drivers=hosts.drivers if hosts else {}, deputy=StackDeputy()))


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


def cluster_id(inventory: Inventory) -> str:
    """Return what no other cluster has: the uid of its namespace kube-system. Raises Unreachable, Refused."""
    from gpu_provision.cluster.observe import NAMESPACE
    from gpu_provision.engine.session import Session

    found = Session(inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
    return str(found[0]["metadata"]["uid"]) if found else ""
