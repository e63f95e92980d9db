"""The local record of runs: complete, bounded, and never a reason to fail."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.history import store
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import Record
from gpu_provision.model.plan import Action, Change, FieldChange, Plan
from gpu_provision.model.progress import Evidence, RunResult, State, Transition

RECORD = Record(id="20260101T000000.000000Z-abc", number=3, inventory="prod", release="26.7.0", text="name: prod\n")
RESULT = RunResult(
    changed=3,
    evidence=(Evidence(component="driver_validation", node="t4-1", pod="p", passed=True, lines=("Test PASSED",)),),
    timeline=(
        Transition(at=0.5, component="driver", node="t4-1", state=State.PROGRESSING, step="cordon-required"),
        Transition(at=61.25, component="driver", node="t4-1", state=State.FAILED, reason="a\ttab, a\nline"),
    ),
)
PLAN = Plan(
    inventory="prod",
    release="26.7.0",
    cluster="test",
    components=("driver",),
    changes=(
        Change(
            component="driver",
            action=Action.UPDATE,
            ref=ObjectRef("v1", "Secret", "gpu", "licence"),
            fields=(FieldChange("data.token", "hunter2", "hunter2"),),
            effects=("restarts a pod",),
            manifest={"kind": "Secret", "data": {"token": "hunter2"}},
        ),
    ),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_run_is_written_down_with_its_evidence(state: Path) -> None:
    path = store.write_local(RECORD, lambda: store.run_details(PLAN, RESULT, [Finding(code="GP501", what="x")]))
    assert path
    assert path.is_relative_to(state)
    document = json.loads(path.read_text())
    assert document["evidence"][0]["lines"] == ["Test PASSED"]
    assert document["findings"][0]["code"] == "GP501"
    assert (document["release"], document["changed"], document["number"]) == ("26.7.0", 3, 3)
    assert (document["cluster"], document["changes"][0]["effects"]) == ("test", ["restarts a pod"])
    assert "hunter2" not in path.read_text()
    assert tuple(map(store.transition_of, document["timeline"])) == RESULT.timeline
    assert store.local_details(RECORD, "prod") == document


def test_only_its_owner_can_read_a_record(state: Path) -> None:
    """Whatever the umask; a folder that an earlier version left open is closed, one of the user's is not."""
    folder = state / "gpu-provision/runs"
    folder.mkdir(parents=True)
    for each in (state, folder.parent, folder):
        each.chmod(0o755)
    before = os.umask(0)
    try:
        path = store.write_local(RECORD)
    finally:
        os.umask(before)
    assert path
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents[:4])]
    assert modes == [0o600, 0o700, 0o700, 0o700, 0o755]


@pytest.mark.usefixtures("state")
def test_a_run_is_found_by_its_number_or_as_the_newest() -> None:
    """One that cannot be read is none."""
    assert store.find_local("prod") is None
    paths = [store.write_local(replace(RECORD, id=f"2026010{number}-abc", number=number)) for number in (1, 2, 3)]
    assert paths[2]
    paths[2].write_text("{")
    assert (store.find_local("prod") or {})["number"] == 2
    assert (store.find_local("prod", 1) or {})["id"] == "20260101-abc"
    assert store.find_local("prod", 3) is None


@pytest.mark.usefixtures("state")
def test_an_inventory_that_was_too_large_for_the_cluster_is_here() -> None:
    store.write_local(RECORD)
    in_cluster = replace(RECORD, text="", lacks="too large")
    assert store.complete_from_local(in_cluster, "prod") == RECORD
    assert store.complete_from_local(in_cluster, "another") == in_cluster
    assert store.complete_from_local(replace(in_cluster, id="of another machine"), "prod").lacks == "too large"


@pytest.mark.usefixtures("state")
def test_a_damaged_record_has_nothing_to_say() -> None:
    path = store.write_local(RECORD)
    assert path
    for damaged in ("[]", "{"):
        path.write_text(damaged)
        assert store.local_details(RECORD, "prod") == {}


@pytest.mark.usefixtures("state")
def test_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOCAL_LIMIT", 2)
    paths = [store.write_local(replace(RECORD, id=f"2026010{day}T000000.000000Z-abc")) for day in range(1, 5)]
    assert sorted(store.local_folder("prod").iterdir()) == paths[-2:]


@pytest.mark.usefixtures("state")
def test_what_killed_processes_were_writing_goes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOCAL_LIMIT", 2)
    folder = store.local_folder("prod")
    folder.mkdir(parents=True)
    (folder / ".20260101T000000.000000Z-abc.json.4711").write_text("{", encoding="utf-8")
    for letter in "bcd":
        store.write_local(replace(RECORD, id=f"20260102T000000.000000Z-{letter}"))
    assert [path.suffix for path in folder.iterdir()] == [".json", ".json"]


@pytest.mark.usefixtures("state")
def test_what_another_process_is_writing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOCAL_LIMIT", 2)
    folder = store.local_folder("prod")
    folder.mkdir(parents=True)
    draft = folder / ".20260103T000000.000000Z-abc.json.4711"
    draft.write_text("{", encoding="utf-8")
    for day in (1, 2):
        store.write_local(replace(RECORD, id=f"2026010{day}T000000.000000Z-abc"))
    assert draft.exists()


def test_a_folder_that_cannot_be_written_fails_no_run(state: Path) -> None:
    state.write_text("a file where the folder should be")
    assert store.write_local(RECORD) is None
