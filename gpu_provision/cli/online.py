"""plan, apply, status: commands that look at hosts and a cluster."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from gpu_provision.cli import confirmation, hints, host_phase, options, plan_file
from gpu_provision.cli.account import Account, page_at
from gpu_provision.cli.display import Shown, shown_on_stderr
from gpu_provision.cli.inventory_file import loaded
from gpu_provision.cli.limits import limited
from gpu_provision.cli.output import Output, write
from gpu_provision.cli.overrides import with_ignored, with_timeout
from gpu_provision.cli.work import Listen, Work
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.findings import ExitCode, Finding, RunFailed, Severity
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import RunResult
from gpu_provision.report import diff as diff_view
from gpu_provision.report import findings as findings_view
from gpu_provision.report import hosts as hosts_view
from gpu_provision.report import plan as plan_view
from gpu_provision.report import run as run_view
from gpu_provision.report import status as status_view
from gpu_provision.report.documents import document
from gpu_provision.report.style import Style


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.limit
@options.target
@options.phases
@options.ignore
@options.ask_sudo_password
@click.option("--diff", is_flag=True, help="Everything as a unified diff of YAML.")
@click.option("--offline", is_flag=True, help="As if the cluster were empty, without asking it.")
@click.option(
    "--out",
    "saved",
    metavar="FILE",
    help="Also write the plan to a file, for: gpu-provision apply FILE.",
)
@options.take_over
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
    saved: str | None,
    take_over: bool,
    detailed_exitcode: bool,
    out: Output,
) -> ExitCode:
    """Show what apply would change, and change nothing.

    \b
    +  is created        ~  is updated       -  is deleted
    >  a validation      !  a conflict       .  as declared, but not ready yet
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if saved is not None and offline:
        message = "--out is of a plan for a cluster that was asked: leave --offline out."
        raise click.UsageError(message)
    place = plan_file.place(saved)
    inventory = with_ignored(loaded(file, kubeconfig=kubeconfig, context=context), ignored)
    names = limited(inventory, limit)
    work = Work(
        inventory=inventory,
        limit=names,
        targets=targets,
        hosts=hosts and not offline,
        cluster=cluster,
        command="plan",
        take_over=take_over,
    )
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=True)
        on_cluster = work.plan(on_hosts, offline=offline)
    differs = _show_plan(work, on_cluster, on_hosts, out=out, diff=diff)
    failed = _cannot_be_applied(on_cluster, on_hosts)
    if place and failed:
        out.note(f"{place} was not written: this plan cannot be applied.")
    elif place:
        plan_file.written(place, work, on_cluster, on_hosts, ignored=ignored)
    if differs and not offline:
        following = hints.command("apply", shlex.quote(str(place)), part=False) if place else hints.command("apply")
        out.hint(f"Next: {following}")
    if failed:
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if differs and detailed_exitcode else ExitCode.OK


def _show_plan(work: Work, on_cluster: Plan, on_hosts: HostsResult | None, *, out: Output, diff: bool = False) -> bool:
    """Print both plans as one, and return whether anything would change."""
    changing = len(on_hosts.changed) if on_hosts else 0
    text = plan_view.text(on_cluster, out.style, on_hosts=on_hosts)
    if diff:
        text = f"{diff_view.text(on_cluster, out.style)}\n\n{text}".lstrip()
    findings = (*on_cluster.findings, *work.known, *_findings(on_hosts))
    parts = {"hosts": _hosts_document(on_hosts), **plan_view.document(on_cluster)}
    out.result(document(work.command, findings, **parts), text)
    if not out.json:
        write(sys.stderr, findings_view.text((*work.known, *_findings(on_hosts)), out.error_style))
    return bool(changing) or not on_cluster.is_empty


def _findings(on_hosts: HostsResult | None) -> tuple[Finding, ...]:
    return (*on_hosts.errors, *on_hosts.findings) if on_hosts else ()


def _hosts_document(on_hosts: HostsResult | None) -> list[dict[str, Any]]:
    return hosts_view.document(on_hosts) if on_hosts else []


def _cannot_be_applied(on_cluster: Plan, on_hosts: HostsResult | None) -> bool:
    conflict = any(finding.severity is Severity.ERROR for finding in on_cluster.findings)
    return conflict or bool(on_hosts and on_hosts.failed)


def shown(work: Work, out: Output) -> ExitCode:
    """Print what a command would change, and change nothing."""
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=True)
        on_cluster = work.plan(on_hosts)
    _show_plan(work, on_cluster, on_hosts, out=out)
    return ExitCode.FAILED if _cannot_be_applied(on_cluster, on_hosts) else ExitCode.OK


@click.command()
@click.argument("saved", metavar="[PLAN]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.inventory
@options.kubeconfig
@options.context
@options.limit
@options.target
@options.phases
@options.ignore
@options.ask_sudo_password
@options.timeout
@options.take_over
@options.yes
@options.report
@options.speaking
def apply(  # noqa: PLR0913 - one argument per option
    *,
    saved: Path | None,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    targets: tuple[str, ...],
    hosts: bool,
    cluster: bool,
    ignored: tuple[str, ...],
    timeout: int | None,
    take_over: bool,
    yes: bool,
    report: str | None,
    out: Output,
) -> ExitCode:
    """Make hosts and cluster as the inventory declares, and wait until the GPUs are validated.

    Where a controller looks after the stack, its resource is changed, and what comes of it is waited for.

    With PLAN, a file of gpu-provision plan --out, do exactly what it says, without asking; if inventory, hosts or
    cluster have moved since, say what has moved, and change nothing.
    """
    promise = plan_file.promised(saved) if saved else None
    if promise:
        decided = {"--limit": limit, "--target": targets, "--hosts-only": not cluster, "--cluster-only": not hosts}
        decided |= {"--ignore": ignored}
        plan_file.refuse_options(decided)
        file, ignored, yes = file or promise.inventory, promise.ignored, True
    inventory = with_ignored(loaded(file, kubeconfig=kubeconfig, context=context), ignored)
    names = limited(inventory, limit)
    work = Work(inventory=inventory, limit=names, targets=targets, hosts=hosts, cluster=cluster)
    if promise:
        work = promise.work(inventory)
        work = replace(work, take_over=take_over)
        _hold(promise, work, out)
    work = replace(work, inventory=with_timeout(inventory, timeout), take_over=take_over)
    return carried_out(work, out, yes=yes, report=report)


def carried_out(work: Work, out: Output, *, yes: bool, report: str | None) -> ExitCode:
    """Ask, or else say what changes, and make hosts and cluster as declared."""
    page = page_at(report)
    asks = confirmation.is_needed(work.inventory, yes=yes)
    if asks and not _agreed(work, out):
        out.note("Nothing was changed.")
        return ExitCode.FAILED
    account = Account(inventory=work.inventory, page=page, command=work.command, known=work.known)
    with account.kept(out):
        with shown_on_stderr(out) as display:
            listen = account.heard_by(display)
            account.hosts = work.prepare(listen, dry_run=False)
            ready = not (account.hosts and account.hosts.failed)
            if work.cluster and ready:
                announce = _say_nothing if asks else partial(_announced, display, out.error_style)
                account.result = _applied(work, listen, account, announce)
        account.held_back = host_phase.held_back(account.hosts, cluster_waits=work.cluster)
        account.known += work.put_hosts_on_record(account.hosts)
        _show_run(account, out)
    return ExitCode.OK if account.succeeded else ExitCode.FAILED


def _hold(promise: plan_file.Promise, work: Work, out: Output) -> None:
    """Look before the first host is touched whether everything is as it was planned for. Raises RunFailed."""
    promise.hold_inventory(work.inventory)
    promise.hold_cluster(work)
    if not work.hosts:
        return  # the run itself looks at the cluster, right before it writes
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=True)
        promise.hold_hosts(on_hosts)
        promise.hold_plan(work.plan(on_hosts))


def _applied(work: Work, listen: Listen, account: Account, announce: Callable[[Plan], None]) -> RunResult:
    """Return how the run ended, also if something failed: what did get done is worth showing."""

    def planned(plan: Plan) -> None:
        account.plan(plan)
        announce(plan)

    try:
        return work.apply(listen, account.hosts, planned=planned)
    except RunFailed as failure:
        if not isinstance(failure.result, RunResult):
            raise
        return failure.result


def _announced(display: Shown, style: Style, plan: Plan) -> None:
    """Say what changes where no question has shown it: a log of CI has it then."""
    if not plan.is_empty:
        display.say(plan_view.announced(plan, style))


def _say_nothing(_plan: Plan) -> None:
    """Leave it at what the question has shown."""


def _show_run(account: Account, out: Output) -> None:
    on_hosts, result = account.hosts, account.result
    text = [hosts_view.text(on_hosts, out.style)] if on_hosts else []
    text += [run_view.text(result, out.style)] if result else []
    parts = run_view.document(result or RunResult())
    out.result(
        document(
            account.command,
            account.findings,
            inventory=account.inventory.name,
            hosts=_hosts_document(on_hosts),
            **parts,
        ),
        "\n\n".join(text),
    )
    if not out.json:
        write(sys.stderr, findings_view.text(account.findings, out.error_style))


def _agreed(work: Work, out: Output) -> bool:
    """Show what would happen and ask; nothing to do needs no answer."""
    confirmation.require_terminal(out, look="rollback --dry-run" if work.command == "rollback" else "plan")
    with shown_on_stderr(out) as listen:
        on_hosts = work.prepare(listen, dry_run=True)
        on_cluster = work.plan(on_hosts)
    if not _show_plan(work, on_cluster, on_hosts, out=out):
        return True
    changed = len(on_hosts.changed) if on_hosts else 0
    target = confirmation.target(on_cluster.cluster if work.cluster else "", changed)
    return confirmation.given(f"Apply these changes to {target}?")


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
