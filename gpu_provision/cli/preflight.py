"""preflight: what would go wrong, before anything is changed."""

from __future__ import annotations

import click

import gpu_provision
from gpu_provision.cli import options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.options import loaded
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode


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
    inventory = loaded(file, kubeconfig=kubeconfig, context=context)
    with shown_on_stderr(out) as listen:
        found = gpu_provision.preflight(inventory, limit=limit, ignored=ignored, offline=offline, listen=listen)
    out.result(found.document(), found.text(out.style))
    return ExitCode.FAILED if found.failed else ExitCode.OK
