"""The command report and the option --report: the HTML report of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_provision import files
from gpu_provision.cli import options
from gpu_provision.cli.options import load_inventory
from gpu_provision.cli.output import Output, report_write_errors
from gpu_provision.history import store
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, RunFailedError, UsageError, attached_findings
from gpu_provision.model.history import Ending
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import DestroyResult, Plan
from gpu_provision.model.progress import Event, RunResult
from gpu_provision.output.findings import document
from gpu_provision.output.history import RunReport, last_states, report_of_record
from gpu_provision.output.text import join_first, ranges
from gpu_provision.reconcile.states import Timeline

if TYPE_CHECKING:
    from gpu_provision.api.results import StackRemoval, StackRun

_UNWRITABLE = ("the report cannot be written", "name a file in an existing, writable directory")
_MAX_EVICTED = 50  # pods that the report names


@dataclass(slots=True, kw_only=True)
class ReportCollector:
    """Collects the data of a run for its report."""

    inventory: Inventory
    page: Path | None  # path of the report; None for none
    command: str
    extra_findings: tuple[Finding, ...] = ()  # further findings
    hosts: HostsResult = NO_HOSTS  # result of the host phase
    removal: DestroyResult | None = None  # result of the cluster phase of destroy
    plan: Plan | None = None  # plan of the cluster
    run: StackRun | StackRemoval | None = None  # result of the run
    _began: datetime = field(default_factory=lambda: datetime.now(UTC))
    _timeline: Timeline = field(default_factory=lambda: Timeline(time.monotonic()))

    def record_events(self, listen: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a listener that records events and passes these to ``listen``."""

        def both(event: Event) -> None:
            self._timeline.observe(event, time.monotonic())
            listen(event)

        return both

    @contextlib.contextmanager
    def write_page_at_end(self, out: Output) -> Iterator[None]:
        """Write the report at the end of the block, also of an interrupted or failed one.

        Raises ProvisionError if the block succeeds and the report cannot be written.
        """
        try:
            yield
        except BaseException as error:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            if is_interrupt and self.hosts and self.hosts.changed:
                error.add_note(f"hosts changed before: {ranges(host.name for host in self.hosts.changed)}")
            outcome = Ending.INTERRUPTED if is_interrupt else Ending.FAILED
            what = f"a mistake in gpu-provision itself: {type(error).__name__}"
            why: tuple[Finding, ...] = (Finding(code=codes.INTERNAL, what=what),)
            if is_interrupt or isinstance(error, ProvisionError):
                why = error.findings if isinstance(error, ProvisionError) else attached_findings(error)
            with contextlib.suppress(Exception):  # the first exception matters more
                self._write(outcome, out, why)
            raise
        self._write(Ending.SUCCEEDED if self.run and self.run.succeeded else Ending.FAILED, out)

    def _write(self, outcome: Ending, out: Output, findings: tuple[Finding, ...] = ()) -> None:
        if self.page is None:
            return
        from gpu_provision.output.html_report import page

        write_page(self.page, page(self._build_report(outcome, findings)))
        out.note(f"Report: {self.page}")

    def _build_report(self, outcome: Ending, findings: tuple[Finding, ...]) -> RunReport:
        timeline, result = tuple(self._timeline.transitions), self.run.cluster if self.run else None
        if not isinstance(result, RunResult):  # interrupted, or no writes: use the record or the last states
            record = store.find_local(self.inventory.name)
            is_ours = record is not None and record.get("began", "") >= f"{self._began:%Y-%m-%dT%H:%M:%SZ}"
            states = last_states(timeline)
            result = report_of_record(record).result if record and is_ours else RunResult(states=states)
        known = (*self.hosts.all_findings, *self.extra_findings, *(self.removal.findings if self.removal else ()))
        findings = (*(self.run.findings if self.run else known), *findings)
        story = RunReport(
            command=self.command,
            inventory=self.inventory.name,
            release=self.inventory.release,
            cluster=self.plan.cluster if self.plan else "",
            outcome=outcome,
            began=self._began,
            seconds=time.monotonic() - self._timeline.began,
            plan=self.plan,
            hosts=self.run.hosts if self.run else self.hosts,
            result=result,
        )
        story = _with_removal(story, self.removal) if self.removal else story
        return replace(story, result=replace(story.result, timeline=timeline, findings=findings))


def _with_removal(story: RunReport, removal: DestroyResult) -> RunReport:
    from gpu_provision.output import views

    evicted = removal.evicted
    return replace(
        story,
        cluster=removal.cluster,
        plan=views.to_plan(removal, story.inventory),
        closing=views.removal_closing(removal, dry_run=False),
        note=f"Evicted: {join_first(evicted, _MAX_EVICTED)}." if evicted else "",
        result=RunResult(changed=len(removal.changes)),
    )


def report_path(file: str | None, *, dry_run: bool = False) -> Path | None:
    """Return the path of the report, None for none. Raises UsageError for an unwritable file or a dry run."""
    if file is None:
        return None
    if dry_run:
        raise UsageError(Finding(code=codes.USAGE, what="--report needs a run, and --dry-run makes none"))
    path = Path(file).resolve()
    with report_write_errors(path, *_UNWRITABLE, code=codes.NO_PLACE_FOR_REPORT):
        files.check_writable(path)
    return path


def write_page(path: Path, text: str) -> None:
    """Write a report atomically; only its owner can read it. Raises ProvisionError."""
    with report_write_errors(path, *_UNWRITABLE, code=codes.NO_PLACE_FOR_REPORT, error_class=ProvisionError):
        files.write_atomic(path, text, private=True)


@click.command()
@click.argument("run", type=click.IntRange(min=1), required=False)
@options.inventory
@click.option("--out", "file_out", metavar="FILE.html", help="Output file. Default: stdout.")
@options.output_options
def report(*, run: int | None, file: str | None, file_out: str | None, out: Output) -> None:
    """Write an HTML report of run RUN of gpu-provision history. Default: the newest run.

    Reads the run's record on this machine, also of a failed, interrupted or unfinished run. Makes no API calls.
    """
    from gpu_provision.output.html_report import page

    inventory, target = load_inventory(file), report_path(file_out)
    story = _read_report(inventory, run)
    html = page(story)
    if target:
        write_page(target, html)
        out.note(f"Report: {target}")
    output: dict[str, Any] = {"report": str(target)} if target else {"html": html}
    out.result(document("report", inventory=inventory.name, run=story.result.run, **output), "" if target else html)


def _read_report(inventory: Inventory, run: int | None) -> RunReport:
    """Return the local record of a run. Raises UsageError without a record, RunFailedError for a damaged one."""
    record, where = store.find_local(inventory.name, run), str(store.local_folder(inventory.name))
    if record is None:
        what = f"run {run} is not on record on this machine" if run else "no run is on record on this machine"
        fix = "run the command on the machine of the run; gpu-provision history names its user"
        raise UsageError(Finding(code=codes.NO_LOCAL_RECORD, where=where, what=what, fix=fix))
    try:
        return report_of_record(record)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        damaged = Finding(
            code=codes.DAMAGED_LOCAL_RECORD,
            where=f"{where}/{record.get('id', '')}.json",
            what="the record of the run cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            fix="name another run: gpu-provision report RUN",
        )
        raise RunFailedError(damaged) from error
