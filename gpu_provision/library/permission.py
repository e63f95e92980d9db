"""Who may work on a stack: the roles for it, and the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_provision.library.cluster_phase import ignore
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Lock
from gpu_provision.planning.roles import Subject, roles


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


def unlock(
    inventory: Inventory,
    *,
    force: bool = False,
    agreed: Callable[[Lock], bool] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Lock | None, bool]:
    """Release the lock of a dead run.

    Args:
        inventory: From `load`.
        force: Also break the lock of a run that lives; that run ends.
        agreed: Called with the lock before it is released; False leaves it.
        say: Called with what the function waits for: only time tells whether a run on another machine lives.

    Returns:
        The lock as it was, None if it was free; and whether it was released.

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
        return agreed is None or agreed(lock)

    held, version = free(cluster, inventory, force=force, agreed=asked, on_wait=say or ignore)
    return held, bool(version)
