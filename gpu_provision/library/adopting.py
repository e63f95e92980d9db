"""Taking a cluster over from the GPU Operator."""

from __future__ import annotations

from collections.abc import Callable

from gpu_provision.library.cluster_phase import ignore
from gpu_provision.library.results import StackAdoption, StackRun, unless_failed
from gpu_provision.library.work import Work
from gpu_provision.model.findings import RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event


def adoption(inventory: Inventory) -> StackAdoption:
    """Return what taking the cluster over from the GPU Operator would do; nothing is written.

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
    return StackAdoption.copy_of(planned_adoption(session))


def adopt(inventory: Inventory, *, listen: Callable[[Event], None] | None = None) -> StackRun:
    """Take the cluster over from the GPU Operator: stop it, take its objects over, apply, and remove the rest of it.

    A driver that is as declared keeps running. A call after a killed process resumes. Hosts are left alone.

    Args:
        listen: As for `apply`.

    Raises:
        RunFailed: Something stands against it, and nothing was written; or something is not as declared afterwards.
        Locked, Refused, Unreachable, Rejected: As for `apply`.
    """
    from gpu_provision.engine import adoption_run
    from gpu_provision.engine.session import Session
    from gpu_provision.operator import leaving

    heard = listen or ignore
    session = Session(inventory)
    if problems := leaving.against_adoption(session.cluster, inventory):
        raise RunFailed(*problems)
    adoption_run.hand_over(session, heard)
    result = unless_failed(Work(inventory=inventory, hosts=False, command="adopt").carry_out(heard))
    adoption_run.finish(Session(inventory), heard)
    return result
