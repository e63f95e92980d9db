"""history, diff, rollback, unlock: what was applied, and back to its versions."""

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
from gpu_provision.model.findings import ExitCode, Finding, Severity
from gpu_provision.model.history import Record
from gpu_provision.model.progress import LockHolder
from gpu_provision.output import history as view
from gpu_provision.output import plan as plan_view
from gpu_provision.output.findings import document, plain


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@options.on_stack
@options.output_options
def history(*, stack: StackOptions, out: Output) -> None:
    """Show the runs that wrote something, the newest first: when, by whom, and how they ended."""
    if not click.get_current_context().invoked_subcommand:
        out.show(gpu_provision.history(stack.load()))


@history.command()
@click.argument("number", type=click.IntRange(min=1))
@options.on_stack
@click.option("--text", "text_only", is_flag=True, help="Print only the run's inventory as YAML.")
@options.output_options
def show(*, number: int, stack: StackOptions, text_only: bool, out: Output) -> None:
    """Show one run with its inventory, without secrets, and what its validations printed if it ran on this machine."""
    from gpu_provision.history import rollback as records
    from gpu_provision.history import store

    inventory = stack.load()
    found = gpu_provision.history(inventory)
    record, changes = records.find_run(found, number), found.changes.get(number, ())
    if text_only:
        text = records.inventory_text(record)
    else:
        text = view.one(record, store.local_details(record, inventory.name), out.style, changes)
    run = {**view.document(record, changes), "text": record.text}
    out.result(document("history show", inventory=inventory.name, runs=[run]), text)


@click.command()
@click.argument("number", type=click.IntRange(min=1))
@click.argument("other", type=click.IntRange(min=1), required=False)
@options.on_stack
@options.detailed_exitcode
@options.output_options
def diff(*, number: int, other: int | None, stack: StackOptions, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show what changed from the inventory of run NUMBER to that of run OTHER, or to the file as it is now.

    As a unified diff of the inventories, without secrets, and as what it means for objects in the cluster.
    """
    from gpu_provision.api.options import meaning as meaning_of
    from gpu_provision.history import rollback as records

    inventory = stack.load()
    found = gpu_provision.history(inventory)
    before = records.find_run(found, number)
    after = records.find_run(found, other) if other else inventory
    texts = records.inventory_text(before), records.inventory_text(after)
    lines = view.diff(*texts, (f"run {number}", f"run {other}" if other else inventory.path), out.style)
    problems, meaning = list[Finding](), ""
    if (changes := meaning_of(before, after, inventory)) is not None:
        meaning = view.meaning(changes, out.style)
    else:
        where = ", ".join(f"run {each.number}" for each in (before, after) if isinstance(each, Record))
        what = "an inventory is not valid for this version of the tool, so what the difference means is not shown"
        problems = [Finding(code=codes.NOT_UNDERSTOOD, where=where, what=what, severity=Severity.WARNING)]
    parts = {"diff": lines.splitlines(), "changes": [plan_view.change_document(each) for each in changes or ()]}
    told = "\n\n".join(filter(None, [lines or "The inventories are the same.", meaning]))
    out.result(document("diff", problems, inventory=inventory.name, **parts), told)
    out.findings(problems)
    return ExitCode.DIFFERENCES if detailed_exitcode and (lines or changes) else ExitCode.OK


@click.command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@options.on_stack
@options.on_part(runs=True, targets=False)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@options.report
@options.yes
@options.output_options
def rollback(  # noqa: PLR0913 - one argument per option
    *, number: int | None, stack: StackOptions, dry_run: bool, report: str | None, yes: bool, out: Output, **part: Any
) -> ExitCode:
    """Go back to the versions of run NUMBER; without one, to those that succeeded before the last run's inventory.

    Brings back the release and the versions of components, and nothing else: all other settings stay as the inventory
    file has them now. The plan is shown, confirmed, applied and validated, and the run is on record. The file is not
    changed: change it as well.
    """
    from gpu_provision.api.jobs import apply_job

    report_path(report, dry_run=dry_run)  # refused before anything is asked
    now = stack.load()
    then, record, findings = gpu_provision.going_back(now, number)
    work = apply_job(then, back_to=record.number, command="rollback", known=findings, **part)
    out.note(f"Back to the versions of run {record.number}, release {then.release}: {record.began} by {record.who}.")
    if dry_run:
        return ExitCode.OK if apply.print_plan(work, out).can_be_applied else ExitCode.FAILED
    code = apply.execute(work, out, yes=yes, report=report)
    if replace(then, text=now.text, digest=now.digest) != now:
        out.hint(f"{now.path} still names other versions: gpu-provision diff {record.number} shows them.")
    return code


@click.command()
@options.on_stack
@click.option("--force", is_flag=True, help="Break the lock even if the run is alive; that run aborts.")
@options.yes
@options.output_options
def unlock(*, stack: StackOptions, force: bool, yes: bool, out: Output) -> ExitCode:
    """Take the lock away from a run that is gone, so that the next one need not wait.

    Says who holds the lock and when it was last renewed, and waits a moment to see whether it still is. A run that
    lives keeps its lock: the exit code is 75 then, unless --force is given. A free lock is no error.
    """
    inventory = stack.load()

    def agreed(held: LockHolder) -> bool:
        if not output.must_ask(inventory, yes=yes):
            return True
        output.require_terminal(out, look="status")
        out.note(f"The lock is held by {held}")
        return output.ask("Take it away?")

    held, freed = gpu_provision.unlock(inventory, force=force, agreed=agreed, say=out.note)
    text = "The lock is free."
    if held:
        text = f"{text} It was held by {held}" if freed else f"Nothing was changed. The lock is held by {held}"
    out.result(document("unlock", inventory=inventory.name, lock=plain(held), unlocked=freed), text)
    return ExitCode.FAILED if held and not freed else ExitCode.OK
