"""The commands plan, apply, status, destroy, drift, preflight and verify."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import gpu_provision
from gpu_provision.cli import options, output
from gpu_provision.cli.display import show_progress
from gpu_provision.cli.options import StackOptions
from gpu_provision.cli.output import Output, describe_target, write
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.output import findings as findings_view
from gpu_provision.output import object_text
from gpu_provision.output import plan as plan_view
from gpu_provision.output.findings import has_errors

if TYPE_CHECKING:
    from gpu_provision.api.jobs import ApplyJob, DestroyJob
    from gpu_provision.api.results import StackPlan, StackRemoval
    from gpu_provision.cli.plan_file import SavedPlan

_WHERE = ("kubeconfig", "context", "ask_sudo_password")
_PART = ("file", "limit", "targets", "hosts_only", "cluster_only", "ignored")  # a plan file contains these


@click.command()
@options.stack_options
@options.part_options(runs=False)
@click.option("--diff", is_flag=True, help="Show every object as a unified diff of YAML.")
@click.option("--offline", is_flag=True, help="Plan against an empty cluster; contacts neither cluster nor hosts.")
@click.option("--out", "saved", metavar="FILE", help="Save the plan for: gpu-provision apply FILE.")
@options.detailed_exitcode
@options.output_options
def plan(  # noqa: PLR0913 - one argument per option
    *,
    stack: StackOptions,
    diff: bool,
    offline: bool,
    saved: str | None,
    detailed_exitcode: bool,
    out: Output,
    **part: Any,
) -> ExitCode:
    """Show what apply would change; read-only.

    \b
    +  create        ~  update       -  delete
    >  validation    !  finding      =  unchanged
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from gpu_provision.api.jobs import apply_job

    if saved is not None and offline:
        message = "--out needs a plan of the real cluster: leave --offline out."
        raise click.UsageError(message)
    path = None
    if saved is not None:
        from gpu_provision.cli import plan_file

        path = plan_file.check_path(saved)
    work = apply_job(stack.load(), command="plan", **part)
    with show_progress(out) as listen:
        planned = work.plan(listen, offline=offline)
    _show_plan(planned, out, diff=diff)
    if path and not planned.can_be_applied:
        out.note(f"{path} was not written: this plan cannot be applied.")
    elif path:
        plan_file.save(path, work, planned, ignored=part["ignored"])
    if planned.can_be_applied and not (planned.is_empty or offline):
        words = [
            "gpu-provision apply",
            shlex.quote(str(path)) if path else "",
            *_repeated_options(_WHERE if path else (*_WHERE, *_PART)),
        ]
        out.hint(f"Next: {' '.join(filter(None, words))}")
    if not planned.can_be_applied:
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and not planned.is_empty else ExitCode.OK


def _repeated_options(names: tuple[str, ...]) -> Iterator[str]:
    """Yield the options of this command line that the suggested next command repeats."""
    context = click.get_current_context()
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if not (is_given and option.name in names):
            continue
        if getattr(option, "is_flag", False):
            yield option.opts[0]
            continue
        values = context.params[option.name]
        for value in values if option.multiple else (values,):
            yield f"{option.opts[0]} {shlex.quote(str(value))}"


def _show_plan(planned: StackPlan, out: Output, *, diff: bool = False) -> None:
    text = planned.text(out.style)
    if diff:
        text = f"{object_text.diff_text(planned.cluster, out.style)}\n\n{text}".lstrip()
    out.result(planned.document(), text)
    if not out.json:
        shown_in_text = planned.cluster.findings
        write(sys.stderr, findings_view.text(planned.findings[len(shown_in_text) :], out.error_style))


def print_plan(work: ApplyJob, out: Output) -> StackPlan:
    """Print the plan of a command."""
    with show_progress(out) as listen:
        planned = work.plan(listen)
    _show_plan(planned, out)
    return planned


@click.command()
@click.argument("saved", metavar="[PLAN]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.stack_options
@options.part_options(runs=True)
@options.yes
@options.report
@options.output_options
def apply(
    *, saved: Path | None, stack: StackOptions, yes: bool, report: str | None, out: Output, **part: Any
) -> ExitCode:
    """Apply the inventory to hosts and cluster, and wait until the GPUs are validated.

    If the operator manages the stack, apply updates the GPUStack and waits for the controller.

    PLAN is a file of gpu-provision plan --out: apply makes exactly its changes, without a prompt. If inventory, hosts
    or cluster have changed since, apply reports that and does not begin the host phase, or the cluster phase.
    """
    from gpu_provision.api.jobs import apply_job

    if not saved:
        return execute(apply_job(stack.load(), **part), out, yes=yes, report=report)
    from gpu_provision.cli import plan_file

    reviewed = plan_file.load_plan(saved)
    plan_file.refuse_options(part)
    work = apply_job(stack.load(reviewed.inventory), **{**part, "ignored": reviewed.ignored})
    work = replace(work, **reviewed.scope)
    reviewed.check_inventory(work.inventory)
    reviewed.check_cluster(work)
    if work.hosts:  # before the first change; without hosts the run itself checks the cluster right before its writes
        with show_progress(out) as listen:
            current = work.plan(listen)
        reviewed.check_hosts(current.hosts)
        reviewed.check_plan(current.cluster)
    return execute(work, out, yes=True, report=report, saved=reviewed)


def execute(work: ApplyJob, out: Output, *, yes: bool, report: str | None, saved: SavedPlan | None = None) -> ExitCode:
    """Ask for confirmation, or print the changes, and apply."""
    from gpu_provision.cli.report import ReportCollector, report_path

    page = report_path(report)
    asks = output.needs_confirmation(work.inventory, yes=yes)
    if asks:
        output.require_terminal(out, look="rollback --dry-run" if work.command == "rollback" else "plan")
        preview = print_plan(work, out)
        cluster = preview.cluster.cluster if work.cluster else ""
        if not _confirm(work.inventory, preview, "Apply these changes to", cluster):
            out.note("Nothing was changed.")
            return ExitCode.FAILED
    account = ReportCollector(
        inventory=work.inventory, page=page, command=work.command, extra_findings=work.extra_findings
    )
    with account.write_page_at_end(out):
        with show_progress(out) as display:

            def show_plan(plan: Plan) -> None:
                account.plan = plan
                display.set_waves(plan)
                if saved:
                    saved.check_plan(plan)
                if not (asks or plan.is_empty):
                    display.print_message(plan_view.announcement(plan, out.error_style))

            run = work.execute(
                account.record_events(display), prepared=partial(setattr, account, "hosts"), planned=show_plan
            )
        account.run = run
        out.show(run)
    return ExitCode.OK if run.succeeded else ExitCode.FAILED


def _confirm(inventory: Inventory, preview: StackPlan | StackRemoval, what: str, cluster: str) -> bool:
    """Ask for confirmation, unless there is nothing to do."""
    target = describe_target(inventory, cluster, len(preview.hosts.changed))
    return preview.is_empty or output.confirm(f"{what} {target}?")


@click.command()
@options.stack_options
@options.detailed_exitcode
@options.output_options
def status(*, stack: StackOptions, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show the state of every component and node, and the output of the validations."""
    current = gpu_provision.status(stack.load())
    out.result(current.document(), current.text(out.style, verbose=bool(out.verbose)))
    return ExitCode.DIFFERENCES if detailed_exitcode and not current.is_ready else ExitCode.OK


def revalidate(inventory: Inventory, out: Output, *, lock_timeout: int) -> ExitCode:
    """Repeat every vectorAdd and print the output. Raises what `gpu_provision.revalidate` raises."""
    with show_progress(out) as listen:
        run = gpu_provision.revalidate(inventory, lock_timeout=lock_timeout, listen=listen)
    out.result(run.document(), run.text(out.style))
    return ExitCode.OK


@click.command()
@options.stack_options
@options.hosts_limit
@options.phase_options
@click.option("--dry-run", is_flag=True, help="Show what would be deleted and what would stay; read-only.")
@click.option(
    "--evict",
    is_flag=True,
    help="Evict GPU pods, respecting PodDisruptionBudgets. Without it, running GPU pods block the removal.",
)
@click.option("--crds", is_flag=True, help="Also delete CustomResourceDefinitions, unless others have objects of them.")
@options.ask_sudo_password
@options.seconds("--timeout", default=300, show_default=True, help="Timeout of each stage.")
@options.lock_timeout
@options.yes
@options.report
@options.output_options
def destroy(
    *, stack: StackOptions, dry_run: bool, yes: bool, report: str | None, out: Output, **terms: Any
) -> ExitCode:
    """Uninstall an inventory's stack from the cluster and its hosts, and verify that nothing is left.

    The cluster comes first: access to GPUs, components in reverse order, labels and cordons of nodes, the rest. Then
    destroy restores the files of the hosts. Objects of other field managers stay, with a finding.
    """
    from gpu_provision.api.jobs import destroy_job
    from gpu_provision.cli.report import ReportCollector, report_path

    removal = destroy_job(stack.load(), **terms)
    page = report_path(report, dry_run=dry_run)
    if dry_run:
        return _exit_code(_preview(removal, out))
    if output.needs_confirmation(removal.inventory, yes=yes):
        output.require_terminal(out, look="destroy --dry-run")
        preview = _preview(removal, out)
        cluster = preview.cluster.cluster if preview.cluster else ""
        if not (preview.succeeded and _confirm(removal.inventory, preview, "Remove all of this from", cluster)):
            out.note("Nothing was changed.")
            return ExitCode.FAILED
    account = ReportCollector(inventory=removal.inventory, page=page, command="destroy")
    with account.write_page_at_end(out):
        with show_progress(out) as listen:
            account.run = done = removal.carry_out(
                account.record_events(listen), removed=partial(setattr, account, "removal")
            )
        out.show(done)
    return _exit_code(done)


def _preview(removal: DestroyJob, out: Output) -> StackRemoval:
    with show_progress(out) as listen:
        preview = removal.preview(listen)
    out.show(preview)
    return preview


def _exit_code(result: StackRemoval) -> ExitCode:
    return ExitCode.OK if result.succeeded else ExitCode.FAILED


@click.command()
@options.stack_options
@options.hosts_limit
@options.phase_options
@options.ask_sudo_password
@options.drift_exitcode
@options.output_options
def drift(*, stack: StackOptions, detailed_exitcode: bool, out: Output, **part: Any) -> ExitCode:
    """Show changes since the last apply, and their field managers; read-only. Without drift, prints one line.

    Changes of the inventory that are not applied yet are pending, not drift.
    """
    inventory = stack.load()
    with show_progress(replace(out, quiet=True)) as listen:
        result = gpu_provision.drift(inventory, listen=listen, **part)
    out.show(result)
    if has_errors(result.findings):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and result.has_drift else ExitCode.OK


@click.command()
@options.stack_options
@options.read_limit
@options.ignore
@options.ask_sudo_password
@click.option("--offline", is_flag=True, help="Skip the image lookup in registries.")
@options.output_options
def preflight(*, stack: StackOptions, out: Output, **part: Any) -> ExitCode:
    """Check hosts and cluster for problems that would fail a run; read-only.

    Reads every host, also those without a GPU, over SSH or with a helper pod, and compares it with the inventory, the
    cluster and the registry. An error exits with 1 and would stop apply on that host, unless --ignore names it.
    """
    inventory = stack.load()
    with show_progress(out) as listen:
        result = gpu_provision.preflight(inventory, listen=listen, **part)
    out.result(result.document(), result.text(out.style))
    return ExitCode.FAILED if result.failed else ExitCode.OK


@click.command()
@click.argument("tests", nargs=-1, type=click.Path(exists=True))
@options.stack_options
@options.read_limit
@options.phase_options
@click.option("--junit", metavar="FILE", default="", help="Also write the results as JUnit XML.")
@options.output_options
def verify(*, stack: StackOptions, out: Output, **part: Any) -> ExitCode:
    """Run acceptance tests against hosts and cluster; read-only.

    Testinfra checks hosts over SSH or with a helper pod, and plain GET requests check the cluster. TESTS are files or
    directories with your own pytest tests (docs/verify.md). Needs pip install 'gpu-provision[verify]'.
    """
    inventory = stack.load()
    with show_progress(out) as listen:
        result = gpu_provision.verify(inventory, listen=listen, **part)
    out.result(result.document(), result.text(out.style))
    return result.exit_code
