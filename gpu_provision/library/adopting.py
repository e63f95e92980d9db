"""Taking a cluster over from the GPU Operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_provision.adoption.plan import Adoption
from gpu_provision.library.cluster_phase import ignore
from gpu_provision.library.results import Shown, StackRun, unless_failed
from gpu_provision.library.work import Work
from gpu_provision.model.findings import RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.report import adoption as adoption_view
from gpu_provision.report.documents import document
from gpu_provision.report.style import PLAIN, Style


@dataclass(frozen=True, kw_only=True)
class StackAdoption(Adoption, Shown):
    """What becomes of each object of the GPU Operator when the cluster is taken over."""

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision adopt --dry-run`` prints on stdout."""
        return adoption_view.text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision adopt --dry-run --json``."""
        told = {"inventory": self.inventory, "cluster": self.cluster, "adoption": adoption_view.document(self)}
        return document("adopt", self.findings, **told)


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
