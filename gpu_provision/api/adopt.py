"""Taking a cluster over from the GPU Operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_provision.adopt.plan import Adoption
from gpu_provision.api.cluster_phase import ignore
from gpu_provision.api.phases import Work
from gpu_provision.api.results import Shown, StackRun, unless_failed
from gpu_provision.model.findings import RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.output import adopt as adoption_view
from gpu_provision.output.documents import document
from gpu_provision.output.text import PLAIN, Style


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
    from gpu_provision.adopt.runner import plan as planned_adoption
    from gpu_provision.operator import release
    from gpu_provision.reconcile.session import Session

    session = Session(inventory)
    if problems := release.against_adoption(session.cluster, inventory):
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
    from gpu_provision.adopt import runner
    from gpu_provision.operator import release
    from gpu_provision.reconcile.session import Session

    heard = listen or ignore
    session = Session(inventory)
    if problems := release.against_adoption(session.cluster, inventory):
        raise RunFailed(*problems)
    runner.transfer_ownership(session, heard)
    result = unless_failed(Work(inventory=inventory, hosts=False, command="adopt").carry_out(heard))
    runner.finalize(Session(inventory), heard)
    return result
