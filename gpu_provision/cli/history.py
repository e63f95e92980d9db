"""The commands history, diff, rollback and unlock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

import gpu_provision
from gpu_provision.cli import apply, options, output
from gpu_provision.cli.options import StackOptions
from gpu_provision.cli.output import Output
from gpu_provision.cli.report import report_path
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Record
from gpu_provision.model.progress import LockHolder
from gpu_provision.output import history as view
from gpu_provision.output import plan as plan_view
from gpu_provision.output.findings import document, to_json_value


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@options.stack_options
@options.output_options
def history(*, stack: StackOptions, out: Output) -> None:
    """List the recorded runs, the newest first: time, user and result."""
    if not click.get_current_context().invoked_subcommand:
        out.show(gpu_provision.history(stack.load()))


@history.command()
@click.argument("number", type=click.IntRange(min=1))
@options.stack_options
@click.option("--text", "text_only", is_flag=True, help="Print only the run's inventory as YAML.")
@options.output_options
def show(*, number: int, stack: StackOptions, text_only: bool, out: Output) -> None:
    """Show one run and its inventory, without secrets. Includes validation output if this machine executed the run."""
    from gpu_provision.history import rollback as records
    from gpu_provision.history import store

    inventory = stack.load()
    runs = gpu_provision.history(inventory)
    record, changes = records.find_run(runs, number), runs.changes.get(number, ())
    if text_only:
        text = records.inventory_text(record)
    else:
        text = view.record_text(record, store.local_details(record, inventory.name), out.style, changes)
    document_of_run = {**view.document(record, changes), "text": record.text}
    out.result(document("history show", inventory=inventory.name, runs=[document_of_run]), text)


@click.command()
@click.argument("number", type=click.IntRange(min=1))
@click.argument("other", type=click.IntRange(min=1), required=False)
@options.stack_options
@options.detailed_exitcode
@options.output_options
def diff(*, number: int, other: int | None, stack: StackOptions, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Compare the inventory of run NUMBER with that of run OTHER, or with the inventory file.

    Prints a unified diff without secrets, and the changes of objects in the cluster.
    """
    from gpu_provision.api.options import object_changes as meaning_of
    from gpu_provision.history import rollback as records

    inventory = stack.load()
    runs = gpu_provision.history(inventory)
    before = records.find_run(runs, number)
    after = records.find_run(runs, other) if other else inventory
    texts = records.inventory_text(before), records.inventory_text(after)
    lines = view.diff(*texts, (f"run {number}", f"run {other}" if other else inventory.path), out.style)
    problems, meaning = list[Finding](), ""
    if (changes := meaning_of(before, after, inventory)) is not None:
        meaning = view.changes_text(changes, out.style)
    else:
        where = ", ".join(f"run {each.number}" for each in (before, after) if isinstance(each, Record))
        what = "an inventory is not valid for this version of the tool, so the changes of objects are not shown"
        problems = [Finding(code=codes.NOT_UNDERSTOOD, where=where, what=what, severity=Severity.WARNING)]
    parts = {"diff": lines.splitlines(), "changes": [plan_view.change_document(each) for each in changes or ()]}
    text = "\n\n".join(filter(None, [lines or "The inventories are the same.", meaning]))
    out.result(document("diff", problems, inventory=inventory.name, **parts), text)
    out.findings(problems)
    return ExitCode.DIFFERENCES if detailed_exitcode and (lines or changes) else ExitCode.OK


@click.command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@options.stack_options
@options.part_options(runs=True, targets=False)
@click.option("--dry-run", is_flag=True, help="Show what would change; read-only.")
@options.report
@options.yes
@options.output_options
def rollback(  # noqa: PLR0913 - one argument per option
    *, number: int | None, stack: StackOptions, dry_run: bool, report: str | None, yes: bool, out: Output, **part: Any
) -> ExitCode:
    """Apply the versions of run NUMBER. Default: the newest successful run with another inventory than the last run's.

    Restores the release and the versions of components only; all other settings come from the inventory file. Shows
    the plan, asks for confirmation, then applies and validates it; the history records the run. The inventory file
    stays unchanged: edit the versions there as well.
    """
    from gpu_provision.api.jobs import apply_job

    report_path(report, dry_run=dry_run)  # refuse before any question
    now = stack.load()
    then, record, findings = gpu_provision.prepare_rollback(now, number)
    work = apply_job(then, rollback_to=record.number, command="rollback", extra_findings=findings, **part)
    out.note(f"Back to the versions of run {record.number}, release {then.release}: {record.began} by {record.user}.")
    if dry_run:
        return ExitCode.OK if apply.print_plan(work, out).can_be_applied else ExitCode.FAILED
    code = apply.execute(work, out, yes=yes, report=report)
    if replace(then, text=now.text, digest=now.digest) != now:
        out.hint(f"{now.path} still names other versions: gpu-provision diff {record.number} shows them.")
    return code


@click.command()
@options.stack_options
@click.option("--force", is_flag=True, help="Break the lock even if the run is alive; that run aborts.")
@options.yes
@options.output_options
def unlock(*, stack: StackOptions, force: bool, yes: bool, out: Output) -> ExitCode:
    """Release the lock of a dead run, so that the next run need not wait.

    Prints the holder of the lock and its last renewal, and watches briefly for another renewal. A live run keeps its
    lock, and unlock exits with 75 unless --force is given. A free lock is no error.
    """
    inventory = stack.load()

    def confirm_holder(held: LockHolder) -> bool:
        if not output.needs_confirmation(inventory, yes=yes):
            return True
        output.require_terminal(out, look="status")
        out.note(f"The lock is held by {held}")
        return output.confirm("Release the lock?")

    held, freed = gpu_provision.unlock(inventory, force=force, agreed=confirm_holder, say=out.note)
    text = "The lock is free."
    if held:
        text = f"{text} It was held by {held}" if freed else f"Nothing was changed. The lock is held by {held}"
    out.result(document("unlock", inventory=inventory.name, lock=to_json_value(held), unlocked=freed), text)
    return ExitCode.FAILED if held and not freed else ExitCode.OK
