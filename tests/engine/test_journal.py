"""The local record of runs: complete, bounded, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_provision.engine import journal
from gpu_provision.model.findings import Finding
from gpu_provision.model.progress import Evidence, RunResult
from tests.components.builders import inventory

RESULT = RunResult(
    changed=3,
    evidence=(Evidence(component="driver_validation", node="t4-1", pod="p", passed=True, lines=("Test PASSED",)),),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_run_is_written_down_with_its_evidence(state: Path) -> None:
    path = journal.record(inventory(), "test", RESULT, [Finding(code="GP501", what="x")])
    assert path
    assert path.is_relative_to(state)
    document = json.loads(path.read_text())
    assert document["evidence"][0]["lines"] == ["Test PASSED"]
    assert document["findings"][0]["code"] == "GP501"
    assert (document["release"], document["changed"]) == ("26.7.0", 3)


@pytest.mark.usefixtures("state")
def test_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_KEPT", 2)
    paths = [journal.record(inventory(), "test", RESULT, []) for _ in range(4)]
    assert sorted(journal.folder(inventory()).iterdir()) == paths[-2:]


def test_a_folder_that_cannot_be_written_fails_no_run(state: Path) -> None:
    state.write_text("a file where the folder should be")
    assert journal.record(inventory(), "test", RESULT, []) is None
