"""``gpu-provision validate --gpus``: every vectorAdd again, and nothing else."""

from __future__ import annotations

from gpu_provision.cli import codes
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.output import Output
from gpu_provision.components import startup_taint
from gpu_provision.model.findings import ExitCode, Finding, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.report import run as run_view
from gpu_provision.report.documents import document

_CHANGING = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})


def revalidate(inventory: Inventory, out: Output) -> ExitCode:
    """Run the validations of every GPU node again and print what they say.

    Raises RunFailed if one fails, or if the cluster is not as declared: validating must change nothing else.
    """
    from gpu_provision import library

    plan = library.plan(inventory)
    if errors := [finding for finding in plan.findings if finding.severity is Severity.ERROR]:
        raise RunFailed(*errors)
    pending = [change for change in plan.changes if _is_in_the_way(change)]
    if pending:
        raise RunFailed(_not_as_declared(inventory, len(pending)))
    with shown_on_stderr(out) as listen:
        result = library.apply(inventory, listen=listen, revalidate=True)
    parts = run_view.document(result)
    out.result(document("validate", inventory=inventory.path, **parts), run_view.text(result, out.style))
    return ExitCode.OK


def _is_in_the_way(change: Change) -> bool:
    """Whether something is to be changed that does not follow from a validation that passes."""
    return change.action in _CHANGING and change.component != startup_taint.NAME


def _not_as_declared(inventory: Inventory, pending: int) -> Finding:
    return Finding(
        code=codes.NOT_AS_DECLARED,
        where=inventory.path,
        what=f"the cluster is not as declared: {pending} changes are pending",
        fix=f"gpu-provision plan -i {inventory.path}, then gpu-provision apply",
    )
