"""plan, apply, status: commands that look at hosts and a cluster."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpu_provision.cli import confirmation, host_phase, options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.inventory_file import loaded
from gpu_provision.cli.limits import limited
from gpu_provision.cli.output import Output, write
from gpu_provision.cli.overrides import with_ignored, with_timeout
from gpu_provision.cli.work import Listen, Work
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.findings import ExitCode, Finding, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import RunResult
from gpu_provision.report import diff as diff_view
from gpu_provision.report import findings as findings_view
from gpu_provision.report import hosts as hosts_view
from gpu_provision.report import plan as plan_view
from gpu_provision.report import run as run_view
from gpu_provision.report import status as status_view
from gpu_provision.report.documents import document


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.limit
@options.target
@options.phases
@options.ignore
@click.option("--diff", is_flag=True, help="Everything as a unified diff of YAML.")
@click.option("--offline", is_flag=True, help="As if the cluster were empty, without asking it.")
@options.detailed_exitcode
@options.speaking
def plan(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    targets: tuple[str, ...],
    hosts: bool,
    cluster: bool,
    ignored: tuple[str, ...],
    diff: bool,
    offline: bool,
    detailed_exitcode: bool,
    out: Output,
) -> ExitCode:
    """Show what apply would change, and change nothing.

    \b
    +  is created        ~  is updated       -  is deleted
    >  a validation      !  a conflict       .  as declared, but not ready yet
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    inventory = with_ignored(loaded(file, kubeconfig=kubeconfig, context=context), ignored)
    names = limited(inventory, limit)
    work = Work(
        inventory=inventory,
        limit=names,
        targets=targets,
        hosts=hosts and not offline,
        cluster=cluster and not names,
    )
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=True)
        on_cluster = work.plan(offline=offline)
    differs = _show_plan(on_cluster, on_hosts, out=out, diff=diff)
    if differs and not offline:
        out.hint(f"Next: gpu-provision apply{f' -i {file}' if file else ''}")
    return _plan_exit(on_cluster, on_hosts, differs=differs and detailed_exitcode)


def _show_plan(on_cluster: Plan, on_hosts: HostsResult | None, *, out: Output, diff: bool = False) -> bool:
    """Print both plans as one, and return whether anything would change."""
    changing = len(on_hosts.changed) if on_hosts else 0
    text = plan_view.text(
        on_cluster,
        out.style,
        hosts=hosts_view.text(on_hosts, out.style) if on_hosts else "",
        changing_hosts=changing,
    )
    if diff:
        text = f"{diff_view.text(on_cluster, out.style)}\n\n{text}".lstrip()
    findings = (*on_cluster.findings, *_findings(on_hosts))
    parts = {"hosts": _hosts_document(on_hosts), **plan_view.document(on_cluster)}
    out.result(document("plan", findings, **parts), text)
    if not out.json:
        write(sys.stderr, findings_view.text(_findings(on_hosts), out.error_style))
    return bool(changing) or not on_cluster.is_empty


def _findings(on_hosts: HostsResult | None) -> tuple[Finding, ...]:
    return (*on_hosts.errors, *on_hosts.findings) if on_hosts else ()


def _hosts_document(on_hosts: HostsResult | None) -> list[dict[str, Any]]:
    return hosts_view.document(on_hosts) if on_hosts else []


def _plan_exit(on_cluster: Plan, on_hosts: HostsResult | None, *, differs: bool) -> ExitCode:
    conflict = any(finding.severity is Severity.ERROR for finding in on_cluster.findings)
    if conflict or (on_hosts and on_hosts.failed):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if differs else ExitCode.OK


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.limit
@options.phases
@options.ignore
@options.timeout
@options.yes
@options.speaking
def apply(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    hosts: bool,
    cluster: bool,
    ignored: tuple[str, ...],
    timeout: int | None,
    yes: bool,
    out: Output,
) -> ExitCode:
    """Make hosts and cluster as the inventory declares, and wait until the GPUs are validated."""
    inventory = with_ignored(loaded(file, kubeconfig=kubeconfig, context=context), ignored)
    inventory = with_timeout(inventory, timeout)
    names = limited(inventory, limit)
    work = Work(inventory=inventory, limit=names, hosts=hosts, cluster=cluster and not names)
    if confirmation.is_needed(inventory, yes=yes) and not _agreed(work, out):
        out.note("Nothing was changed.")
        return ExitCode.FAILED
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=False)
        host_phase.require_done(on_hosts, cluster_waits=work.cluster)
        result = _applied(work, listen) if work.cluster else None
    _show_run(inventory, on_hosts, result, out)
    return ExitCode.OK if result is None or run_view.succeeded(result) else ExitCode.FAILED


def _applied(work: Work, listen: Listen) -> RunResult:
    """Return how the run ended, also if something failed: what did get done is worth showing."""
    try:
        return work.apply(listen)
    except RunFailed as failure:
        if not isinstance(failure.result, RunResult):
            raise
        return failure.result


def _show_run(inventory: Inventory, on_hosts: HostsResult | None, result: RunResult | None, out: Output) -> None:
    found = (*_findings(on_hosts), *(result.findings if result else ()))
    text = [hosts_view.text(on_hosts, out.style)] if on_hosts else []
    text += [run_view.text(result, out.style)] if result else []
    parts = run_view.document(result or RunResult())
    out.result(
        document(
            "apply",
            found,
            inventory=inventory.name,
            hosts=_hosts_document(on_hosts),
            **parts,
        ),
        "\n\n".join(text),
    )
    if not out.json:
        write(sys.stderr, findings_view.text(found, out.error_style))


def _agreed(work: Work, out: Output) -> bool:
    """Show what would happen and ask; nothing to do needs no answer."""
    confirmation.require_terminal(out)
    with shown_on_stderr(out) as listen:
        on_hosts, on_cluster = work.prepare(listen, dry_run=True), work.plan()
    return confirmation.given() if _show_plan(on_cluster, on_hosts, out=out) else True


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.detailed_exitcode
@options.speaking
def status(
    *, file: str | None, kubeconfig: str | None, context: str | None, detailed_exitcode: bool, out: Output
) -> ExitCode:
    """Show every component and node as it stands, and what the validations printed."""
    from gpu_provision import library

    found = library.status(loaded(file, kubeconfig=kubeconfig, context=context))
    out.result(document("status", **status_view.document(found)), status_view.text(found, out.style))
    return ExitCode.DIFFERENCES if detailed_exitcode and not status_view.is_ready(found) else ExitCode.OK
