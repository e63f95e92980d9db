"""plan, apply, status: commands that look at hosts and a cluster."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import gpu_provision
from gpu_provision.cli import confirm, options
from gpu_provision.cli.display import show_progress
from gpu_provision.cli.options import PartOptions, StackOptions
from gpu_provision.cli.output import Output, write
from gpu_provision.model.findings import ExitCode
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.output import findings as findings_view
from gpu_provision.output import object_text
from gpu_provision.output import plan as plan_view

if TYPE_CHECKING:
    from gpu_provision.api.jobs import ApplyJob
    from gpu_provision.api.results import StackPlan
    from gpu_provision.cli.plan_file import SavedPlan


@click.command()
@options.on_stack
@options.on_part(runs=False)
@click.option("--diff", is_flag=True, help="Show every object as a unified diff of YAML.")
@click.option("--offline", is_flag=True, help="Plan against an empty cluster; makes no API calls.")
@click.option("--out", "saved", metavar="FILE", help="Save the plan to a file, for: gpu-provision apply FILE.")
@options.detailed_exitcode
@options.output_options
def plan(  # noqa: PLR0913 - one argument per option
    *,
    stack: StackOptions,
    part: PartOptions,
    diff: bool,
    offline: bool,
    saved: str | None,
    detailed_exitcode: bool,
    out: Output,
) -> ExitCode:
    """Show what apply would change, and change nothing.

    \b
    +  is created        ~  is updated       -  is deleted
    >  a validation      !  a finding        =  as declared
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if saved is not None and offline:
        message = "--out is of a plan for a cluster that was asked: leave --offline out."
        raise click.UsageError(message)
    place = None
    if saved is not None:
        from gpu_provision.cli import plan_file

        place = plan_file.check_path(saved)
    work = part.job(stack.load(), command="plan")
    with show_progress(out) as listen:
        found = work.plan(listen, offline=offline)
    _show_plan(found, out, diff=diff)
    if place and not found.can_be_applied:
        out.note(f"{place} was not written: this plan cannot be applied.")
    elif place:
        plan_file.save(place, work, found, ignored=part.ignored)
    if found.can_be_applied and not (found.is_empty or offline):
        following = (
            confirm.next_command("apply", shlex.quote(str(place)), part=False)
            if place
            else confirm.next_command("apply")
        )
        out.hint(f"Next: {following}")
    if not found.can_be_applied:
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and not found.is_empty else ExitCode.OK


def _show_plan(found: StackPlan, out: Output, *, diff: bool = False) -> None:
    text = found.text(out.style)
    if diff:
        text = f"{object_text.diff_text(found.cluster, out.style)}\n\n{text}".lstrip()
    out.result(found.document(), text)
    if not out.json:
        shown_in_text = found.cluster.findings
        write(sys.stderr, findings_view.text(found.findings[len(shown_in_text) :], out.error_style))


def print_plan(work: ApplyJob, out: Output) -> ExitCode:
    """Print what a command would change, and change nothing."""
    with show_progress(out) as listen:
        found = work.plan(listen)
    _show_plan(found, out)
    return ExitCode.OK if found.can_be_applied else ExitCode.FAILED


@click.command()
@click.argument("saved", metavar="[PLAN]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.on_stack
@options.on_part(runs=True)
@options.yes
@options.report
@options.output_options
def apply(  # noqa: PLR0913 - one argument per option
    *, saved: Path | None, stack: StackOptions, part: PartOptions, yes: bool, report: str | None, out: Output
) -> ExitCode:
    """Make hosts and cluster as the inventory declares, and wait until the GPUs are validated.

    Where a controller looks after the stack, its resource is changed, and what comes of it is waited for.

    With PLAN, a file of gpu-provision plan --out, do exactly what it says, without asking; if inventory, hosts or
    cluster have moved since, say what has moved, and change nothing.
    """
    reviewed = None
    if saved:
        from gpu_provision.cli import plan_file

        reviewed = plan_file.load_plan(saved)
        plan_file.refuse_options(part)
        part, yes = replace(part, ignored=reviewed.ignored), True
    work = part.job(stack.load(reviewed.inventory if reviewed else None))
    if reviewed:
        work = replace(work, **reviewed.scope)
        _check_saved_plan(reviewed, work, out)
    return execute(work, out, yes=yes, report=report, saved=reviewed)


def execute(work: ApplyJob, out: Output, *, yes: bool, report: str | None, saved: SavedPlan | None = None) -> ExitCode:
    """Ask, or else say what changes, and make hosts and cluster as declared."""
    from gpu_provision.cli.report import ReportCollector, report_path

    page = report_path(report)
    asks = confirm.is_required(work.inventory, yes=yes)
    if asks and not _confirmed(work, out):
        out.note("Nothing was changed.")
        return ExitCode.FAILED
    account = ReportCollector(inventory=work.inventory, page=page, command=work.command, known=work.known)

    with account.write_page_at_end(out):
        with show_progress(out) as display:

            def planned(plan: Plan) -> None:
                account.plan = plan
                display.follow(plan)
                if saved:
                    saved.check_plan(plan)
                if not (asks or plan.is_empty):
                    display.say(plan_view.announced(plan, out.error_style))

            run = work.carry_out(account.recording(display), prepared=account.record_hosts, planned=planned)
        account.run = run
        out.show(run)
    return ExitCode.OK if run.succeeded else ExitCode.FAILED


def _check_saved_plan(reviewed: SavedPlan, work: ApplyJob, out: Output) -> None:
    """Look before the first host is touched whether everything is as it was planned for. Raises RunFailedError."""
    reviewed.check_inventory(work.inventory)
    reviewed.check_cluster(work)
    if not work.hosts:
        return  # the run itself looks at the cluster, right before it writes
    with show_progress(out) as listen:
        found = work.plan(listen)
    reviewed.check_hosts(found.hosts)
    reviewed.check_plan(found.cluster)


def _confirmed(work: ApplyJob, out: Output) -> bool:
    """Show what would happen and ask; nothing to do needs no answer."""
    confirm.require_terminal(out, look="rollback --dry-run" if work.command == "rollback" else "plan")
    with show_progress(out) as listen:
        found = work.plan(listen)
    _show_plan(found, out)
    if found.is_empty:
        return True
    changed = len(found.hosts.changed)
    target = confirm.describe_target(work.inventory, found.cluster.cluster if work.cluster else "", changed)
    return confirm.ask(f"Apply these changes to {target}?")


@click.command()
@options.on_stack
@options.detailed_exitcode
@options.output_options
def status(*, stack: StackOptions, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show every component and node as it stands, and what the validations printed."""
    found = gpu_provision.status(stack.load())
    out.result(found.document(), found.text(out.style, verbose=bool(out.verbose)))
    return ExitCode.DIFFERENCES if detailed_exitcode and not found.is_ready else ExitCode.OK


def revalidate(inventory: Inventory, out: Output, *, lock_timeout: int) -> ExitCode:
    """Run every vectorAdd again and print the output. Raises what `gpu_provision.revalidate` raises."""
    with show_progress(out) as listen:
        run = gpu_provision.revalidate(inventory, lock_timeout=lock_timeout, listen=listen)
    out.result(run.document(), run.text(out.style))
    return ExitCode.OK
