"""``gpu-provision unlock``: the lock of a run that is gone."""

from __future__ import annotations

import click

import gpu_provision
from gpu_provision.cli import confirmation, options
from gpu_provision.cli.inventory_file import loaded
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode
from gpu_provision.model.progress import Lock
from gpu_provision.report.documents import document
from gpu_provision.report.status import lock_document


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@click.option("--force", is_flag=True, help="Also from a run that lives; it ends, and leaves what it has written.")
@options.yes
@options.speaking
def unlock(  # noqa: PLR0913 - one argument per option
    *, file: str | None, kubeconfig: str | None, context: str | None, force: bool, yes: bool, out: Output
) -> ExitCode:
    """Take the lock away from a run that is gone, so that the next one need not wait.

    Says who holds the lock and when it was last renewed, and waits a moment to see whether it still is. A run that
    lives keeps its lock: the exit code is 75 then, unless --force is given. A lock that nobody holds is no error.
    """
    inventory = loaded(file, kubeconfig=kubeconfig, context=context)

    def agreed(held: Lock) -> bool:
        if not confirmation.is_needed(inventory, yes=yes):
            return True
        confirmation.require_terminal(out, look="status")
        out.note(f"The lock is held by {held}")
        return confirmation.given("Take it away?")

    held, freed = gpu_provision.unlock(inventory, force=force, agreed=agreed, say=out.note)
    told = document("unlock", inventory=inventory.name, lock=lock_document(held), unlocked=freed)
    out.result(told, _told(held, freed=freed))
    return ExitCode.FAILED if held and not freed else ExitCode.OK


def _told(held: Lock | None, *, freed: bool) -> str:
    if held is None:
        return "Nobody holds the lock."
    return f"The lock is free. It was held by {held}" if freed else f"Nothing was changed. The lock is held by {held}"
