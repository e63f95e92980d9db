"""report: the page of a run that is over, from its local record."""

from __future__ import annotations

from typing import Any

import click

from gpu_provision.model import codes, options
from gpu_provision.cli.account import page_at, put
from gpu_provision.cli.options import loaded
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import Finding, RunFailed, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.output.documents import document
from gpu_provision.output.page.story import Story


@click.command()
@click.argument("run", type=click.IntRange(min=1), required=False)
@options.inventory
@click.option("--out", "file_out", metavar="FILE.html", help="Where the page goes. Default: stdout.")
@options.speaking
def report(*, run: int | None, file: str | None, file_out: str | None, out: Output) -> None:
    """Write a page about a run: number RUN of gpu-provision history, or the newest one.

    It is made from the record that the run left on this machine, also if it failed or was interrupted; of one that goes
    on it has what is known so far. No cluster is asked.
    """
    from gpu_provision.output.page.render import page

    inventory, target = loaded(file), page_at(file_out)
    story = _story(inventory, run)
    html = page(story)
    if target:
        put(target, html)
        out.note(f"Report: {target}")
    told: dict[str, Any] = {"report": str(target)} if target else {"html": html}
    out.result(document("report", inventory=inventory.name, run=story.result.run, **told), "" if target else html)


def _story(inventory: Inventory, run: int | None) -> Story:
    """Return what is on record here. Raises UsageError if there is nothing, RunFailed if it cannot be read."""
    from gpu_provision.history import store
    from gpu_provision.output.page.recalled import story_of

    record, where = store.find_local(inventory.name, run), str(store.local_folder(inventory.name))
    if record is None:
        raise UsageError(_missing(run, where))
    try:
        return story_of(record)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFailed(_damaged(record.get("id", ""), where, error)) from error


def _missing(run: int | None, where: str) -> Finding:
    return Finding(
        code=codes.NO_LOCAL_RECORD,
        where=where,
        what=f"run {run} is not on record on this machine" if run else "no run is on record on this machine",
        fix="ask where the run was made; gpu-provision history tells by whom, and has the records of the cluster",
    )


def _damaged(name: object, where: str, error: Exception) -> Finding:
    return Finding(
        code=codes.DAMAGED_LOCAL_RECORD,
        where=f"{where}/{name}.json",
        what="the record of the run cannot be read",
        evidence=f"{type(error).__name__}: {error}",
        fix="name another run: gpu-provision report RUN",
    )
