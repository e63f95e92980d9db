"""preflight: what would go wrong, before anything is changed."""

from __future__ import annotations

from dataclasses import replace

import click

from gpu_provision.cli import options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.inventory_file import loaded
from gpu_provision.cli.limits import limited
from gpu_provision.cli.output import Output
from gpu_provision.cli.overrides import with_ignored
from gpu_provision.cli.work import as_a_look
from gpu_provision.model.findings import ExitCode
from gpu_provision.model.inventory import Inventory
from gpu_provision.report import hosts as hosts_view
from gpu_provision.report import preflight as preflight_view
from gpu_provision.report.documents import document


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@click.option("--limit", metavar="HOST[,HOST...]", help="Only these hosts: names, patterns, groups, or @FILE.")
@options.ignore
@options.ask_sudo_password
@click.option("--offline", is_flag=True, help="Ask no registry for images.")
@options.speaking
def preflight(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    ignored: tuple[str, ...],
    offline: bool,
    out: Output,
) -> ExitCode:
    """Say what would go wrong on hosts and in the cluster, and change nothing.

    Every host is read over SSH, also those without a GPU, and compared with the inventory, the cluster and the
    registry. An error exits with 1 and would stop apply on that host; --ignore CODE turns it into a warning.
    """
    from gpu_provision import library

    inventory = with_ignored(loaded(file, kubeconfig=kubeconfig, context=context), ignored)
    inventory = without_registry(inventory) if offline else inventory
    names = limited(inventory, limit)
    with shown_on_stderr(out) as listen:
        found = library.preflight(inventory, limit=names, listen=as_a_look(listen))
    out.result(
        document(
            "preflight",
            found.findings,
            inventory=inventory.name,
            hosts=hosts_view.document(found.hosts),
        ),
        preflight_view.text(found, out.style),
    )
    return ExitCode.FAILED if found.failed else ExitCode.OK


def without_registry(inventory: Inventory) -> Inventory:
    """Return the inventory with no registry to be asked."""
    return replace(inventory, preflight=replace(inventory.preflight, registry=False))
