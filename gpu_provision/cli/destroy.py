"""destroy: takes a stack off cluster and hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_provision.cli import confirm, options
from gpu_provision.cli.display import show_progress
from gpu_provision.cli.options import StackOptions
from gpu_provision.cli.output import Output
from gpu_provision.cli.report import ReportCollector, report_path
from gpu_provision.model.findings import ExitCode

if TYPE_CHECKING:
    from gpu_provision.api.destroy_job import DestroyJob
    from gpu_provision.api.results import StackRemoval


@click.command()
@options.on_stack
@options.hosts_limit
@options.phase_options
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and change nothing.")
@click.option(
    "--evict",
    is_flag=True,
    help="Evict GPU pods (respecting PodDisruptionBudgets). Without it, running GPU pods block the removal.",
)
@click.option("--crds", is_flag=True, help="Also delete CustomResourceDefinitions, unless others have objects of them.")
@options.ask_sudo_password
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    default=300,
    show_default=True,
    help="Timeout of each stage.",
)
@options.lock_timeout
@options.yes
@options.report
@options.output_options
def destroy(  # noqa: PLR0913 - one argument per option
    *,
    stack: StackOptions,
    limit: str | None,
    hosts_only: bool,
    cluster_only: bool,
    dry_run: bool,
    evict: bool,
    crds: bool,
    timeout: int,
    lock_timeout: int,
    yes: bool,
    report: str | None,
    out: Output,
) -> ExitCode:
    """Take everything of an inventory off the cluster and its hosts, and look for what is left.

    The cluster comes first: access to GPUs, components in reverse order, labels and cordons of nodes, the rest. Then
    hosts: files as they were before. What others made or took over stays, with a finding.
    """
    from gpu_provision.api.destroy_job import DestroyJob
    from gpu_provision.api.jobs import halves
    from gpu_provision.api.options import nodes_of

    inventory = stack.load()
    removal = DestroyJob(
        inventory=inventory,
        limit=nodes_of(inventory, limit),
        crds=crds,
        evict=evict,
        timeout=timeout,
        lock_timeout=lock_timeout,
        **halves(hosts_only=hosts_only, cluster_only=cluster_only),
    )
    page = report_path(report, dry_run=dry_run)
    if dry_run:
        return _shown(_previewed(removal, out), out)
    if confirm.is_required(inventory, yes=yes) and not _agreed(removal, out):
        out.note("Nothing was changed.")
        return ExitCode.FAILED
    account = ReportCollector(inventory=inventory, page=page, command="destroy")
    with account.write_page_at_end(out):
        with show_progress(out) as listen:
            account.run = removal.carry_out(account.recording(listen), removed=account.record_removal)
        return _shown(account.run, out)


def _previewed(removal: DestroyJob, out: Output) -> StackRemoval:
    with show_progress(out) as listen:
        return removal.look(listen)


def _agreed(removal: DestroyJob, out: Output) -> bool:
    """Show what would go and ask; nothing to do needs no answer, and what is refused no question."""
    confirm.require_terminal(out, look="destroy --dry-run")
    found = _previewed(removal, out)
    if _shown(found, out) is not ExitCode.OK:
        return False
    if found.is_empty:
        return True
    changed = len(found.hosts.changed)
    target = confirm.describe_target(removal.inventory, found.cluster.cluster if found.cluster else "", changed)
    return confirm.ask(f"Remove all of this from {target}?")


def _shown(found: StackRemoval, out: Output) -> ExitCode:
    out.show(found)
    return ExitCode.OK if found.succeeded else ExitCode.FAILED
