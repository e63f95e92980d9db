"""The command report and the option --report, for every outcome of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.api.jobs import ApplyJob
from gpu_provision.history import store
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, RunFailedError, Severity, attach_findings
from gpu_provision.model.history import Ending, Record
from gpu_provision.model.progress import Event, RunResult, State
from tests.cli.harness import SANDBOX, Fakes, Run
from tests.output.samples import PLAN, RESULT
from tests.output.test_html_report import FAILURE, TIMELINE


def test_a_run_that_went_well_leaves_a_page(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """The result is unchanged; the path of the report goes to stderr."""
    fakes.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("load ipmi_msghandler",)),))
    page = tmp_path / "page.html"
    ran = run("apply", "--report", page)
    assert ran.code == ExitCode.OK
    assert f"Report: {page}" in ran.err
    assert page.stat().st_mode & 0o777 == 0o600
    text = page.read_text()
    assert "apply of sandbox" in text
    assert "load ipmi_msghandler" in text
    assert [each.name for each in tmp_path.iterdir() if "html" in each.name] == ["page.html"]
    assert "Report" not in run("apply").err


def test_a_run_that_failed_leaves_a_page_with_its_findings(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """Both if an object is not as declared at the end, and if the run could not begin."""
    finding = Finding(code="GP501", where="node t4-1", what="the driver is not ready")
    failure, page = RunFailedError(finding), tmp_path / "page.html"
    failure.result = replace(RESULT, findings=(finding,))
    for each in (failure, RunFailedError(finding)):
        fakes.result = each
        assert run("apply", "--report", page).code == ExitCode.FAILED
        text = page.read_text()
        assert ">failed</span></h1>" in text
        assert "the driver is not ready" in text
        assert ("Ended early, see below." in text) is (each is not failure)
        page.unlink()


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_interrupted_run_leaves_a_page_of_how_far_it_came(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_ours: bool
) -> None:
    """With its hosts, what stays, and what it had put on record; the record of an earlier run is not its own."""

    def apply(*arguments: Any) -> RunResult:
        arguments[-1](Event(component="driver", node="t4-1", state=State.PROGRESSING, message="builds"))
        began = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}" if is_ours else "2020-01-01T00:00:00Z"
        record(replace(RECORD, began=began, ending=Ending.RUNNING), replace(RESULT, changed=7))
        interrupt = KeyboardInterrupt()
        attach_findings(interrupt, Finding(code="GP517", what="t4-1 stays cordoned", severity=Severity.WARNING))
        raise interrupt

    changed = HostOutcome(name="t4-1", changes=("load ipmi_msghandler",))
    fakes.hosts, page = HostsResult(hosts=(changed, HostOutcome(name="t4-2"))), tmp_path / "page.html"
    monkeypatch.setattr(ApplyJob, "_apply_cluster", apply)
    ran = run("apply", "--report", page)
    assert ran.code == ExitCode.INTERRUPTED
    assert "evidence: hosts changed before: t4-1\n" in ran.err
    assert "warning: GP517: t4-1 stays cordoned" in ran.err
    text = page.read_text()
    for words in (">interrupted</span></h1>", "driver coming up: builds", "t4-1 stays cordoned"):
        assert words in text, words
    assert ("Test PASSED" in text, "<dd>7</dd>" in text) == (is_ours, is_ours)


def test_an_unwritable_page_is_refused_before_the_run(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """No such folder, and a folder instead of a file."""
    for path in (tmp_path / "nowhere" / "page.html", tmp_path):
        ran = run("apply", "--report", path)
        assert ran.code == ExitCode.USAGE
        assert f"GP370 {path}" in ran.err
    assert fakes.applied == 0


RECORD = Record(
    id="20260101T000000.000000Z-abc",
    number=3,
    ending=Ending.FAILED,
    began="2026-01-01T00:00:00Z",
    inventory="sandbox",
    release="26.7.0",
)


@pytest.fixture(autouse=True)
def _sandbox(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it sets the folder of records
    monkeypatch.setenv("GPU_PROVISION_INVENTORY", str(SANDBOX))


def record(record: Record = RECORD, result: RunResult = RESULT, *findings: Finding) -> None:
    store.write_local(record, lambda: store.run_details(PLAN, replace(result, timeline=TIMELINE), findings))


def test_the_newest_run_is_shown_with_its_whole_record(run: Run) -> None:
    """Changes, states, evidence, findings and timeline; what is not on record is said."""
    record(replace(RECORD, id="20251231T000000.000000Z-old", number=2))
    record(RECORD, RESULT, FAILURE)
    ran = run("report")
    assert ran.code == ExitCode.OK
    for words in (
        *("apply of sandbox: <span", ">failed</span>", "<dt>Run</dt><dd>3</dd>", "2026-01-01 00:00:00 UTC"),
        *("Source: the local record of the run", "error GP501", "GPU pods leave: default/train"),
        *("driver does not build", "~ DaemonSet gpu-operator-resources/nvidia-dcgm-exporter"),
        *("- DaemonSet gpu-operator-resources/nvidia-mig-manager", "Vector addition of 50000 elements"),
    ):
        assert words in ran.out, words


@pytest.mark.parametrize("ending", [Ending.INTERRUPTED, Ending.RUNNING])
def test_an_unfinished_run_is_shown_up_to_its_last_step(run: Run, ending: Ending, tmp_path: Path) -> None:
    """One that was killed has left its first record alone; a rollback is called one."""
    if ending is Ending.RUNNING:
        store.write_local(replace(RECORD, ending=ending, back_to=2))
    else:
        record(replace(RECORD, ending=ending, back_to=2), RunResult())
    page = tmp_path / "page.html"
    ran = run("report", "3", "--out", page, "--json")
    assert (ran.document["report"], ran.document["run"]) == (str(page), 3)
    text = page.read_text()
    assert 'rollback of sandbox: <span class="interrupted">interrupted' in text
    assert ("driver restarts" in text) == (ending is Ending.INTERRUPTED)


def test_a_run_that_is_not_on_record_here_is_named(run: Run) -> None:
    """Neither any, nor that one."""
    for words, message in (("report",), "no run is on record"), (("report", "7"), "run 7 is not on record"):
        ran = run(*words)
        assert ran.code == ExitCode.USAGE
        assert "GP371" in ran.err
        assert message in ran.err
        record()


def test_a_record_that_cannot_be_read_is_named(run: Run) -> None:
    """Such as one of another version."""
    for broken in ({"timeline": ["?"]}, {"states": [{"state": "odd"}]}, {"began": 5}, {"changes": [{}]}):
        store.write_local(RECORD, partial(dict, broken))
        ran = run("report")
        assert ran.code == ExitCode.FAILED
        assert f"GP372 {store.local_folder('sandbox')}/{RECORD.id}.json" in ran.err
