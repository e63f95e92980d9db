"""Taking a stack off its cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu_provision.library.outcome import unless_failed
from gpu_provision.model.findings import Refused
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State
from gpu_provision.model.removal import RemovalResult


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
    done = leaving.warned(work.execute(), stack)
    return unless_failed(replace(done, requests=cluster.requests))


def _sayer(listen: Callable[[Event], None]) -> Callable[[str], None]:
    return lambda message: listen(Event(component="", node="", state=State.PROGRESSING, message=message))
