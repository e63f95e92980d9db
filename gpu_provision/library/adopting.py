"""Taking a cluster over from the GPU Operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_provision.library.runs import apply
from gpu_provision.model.findings import RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, RunResult

if TYPE_CHECKING:  # the engine imports what asks clusters
    from gpu_provision.adoption.plan import Adoption


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
