"""The page of a run that is over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import jsonschema
import pytest

from gpu_provision.history import store
from gpu_provision.model.findings import ExitCode, Finding
from gpu_provision.model.history import Ending, Record
from gpu_provision.model.progress import RunResult
from gpu_provision.output.findings import output_schema
from tests.cli.harness import SANDBOX, Run
from tests.output.page.test_render import FAILURE, TIMELINE
from tests.output.samples import PLAN, RESULT

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
    """Leave the local record of a run."""
    store.write_local(record, lambda: store.run_details(PLAN, replace(result, timeline=TIMELINE), findings))


def test_the_newest_run_is_told_with_all_that_is_on_record(run: Run) -> None:
    """Changes, states, evidence, findings and timeline; what is not on record is said."""
    record(replace(RECORD, id="20251231T000000.000000Z-old", number=2))
    record(RECORD, RESULT, FAILURE)
    ran = run("report")
    assert ran.code == ExitCode.OK
    for told in (
        "apply of sandbox: <span",
        ">failed</span>",
        "<dt>Run</dt><dd>3</dd>",
        "Told from the local record of the run",
        "2026-01-01 00:00:00 UTC",
        "error GP501",
        "GPU pods leave: default/train",
        "driver does not build",
        "~ DaemonSet gpu-operator-resources/nvidia-dcgm-exporter",
        "- DaemonSet gpu-operator-resources/nvidia-mig-manager",
        "Vector addition of 50000 elements",
    ):
        assert told in ran.out, told


@pytest.mark.parametrize("ending", [Ending.INTERRUPTED, Ending.RUNNING])
def test_a_run_that_did_not_end_is_told_as_far_as_it_came(run: Run, ending: Ending, tmp_path: Path) -> None:
    """One that was killed has left its first record alone; a rollback is called one."""
    if ending is Ending.RUNNING:
        store.write_local(replace(RECORD, ending=ending, back_to=2))
    else:
        record(replace(RECORD, ending=ending, back_to=2), RunResult())
    page = tmp_path / "page.html"
    ran = run("report", "3", "--out", page, "--json")
    jsonschema.validate(ran.document, dict(output_schema()))
    assert (ran.document["report"], ran.document["run"]) == (str(page), 3)
    text = page.read_text()
    assert 'rollback of sandbox: <span class="interrupted">interrupted' in text
    assert ("driver restarts" in text) == (ending is Ending.INTERRUPTED)


def test_a_run_that_is_not_on_record_here_is_named(run: Run) -> None:
    """Neither any, nor that one."""
    for words, told in (("report",), "no run is on record"), (("report", "7"), "run 7 is not on record"):
        ran = run(*words)
        assert ran.code == ExitCode.USAGE
        assert "GP371" in ran.err
        assert told in ran.err
        record()


def test_a_record_that_cannot_be_read_is_named(run: Run) -> None:
    """Such as one of another version."""
    for broken in ({"timeline": ["?"]}, {"states": [{"state": "odd"}]}, {"began": 5}, {"changes": [{}]}):
        store.write_local(RECORD, partial(dict, broken))
        ran = run("report")
        assert ran.code == ExitCode.FAILED
        assert f"GP372 {store.local_folder('sandbox')}/{RECORD.id}.json" in ran.err
