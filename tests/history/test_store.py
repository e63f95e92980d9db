"""Records of runs: as text, for how long, what damage does; the local ones are complete and never a reason to fail."""

from __future__ import annotations

import json
import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.history import store
from gpu_provision.history.store import (
    OBJECT_BYTES,
    decode,
    encode,
    expired_records,
    fit_to_size,
    number_records,
    parse_history,
    plan_digest,
    unfinished_runs,
)
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.plan import Action, Change, FieldChange, Plan
from gpu_provision.model.progress import Evidence, RunResult, State, Transition
from tests import data_file

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
    for damaged in ("[]", "{"):
        paths[2].write_text(damaged)
        assert store.local_details(replace(RECORD, id="20260103-abc"), "prod") == {}


@pytest.mark.usefixtures("state")
def test_an_inventory_that_was_too_large_for_the_cluster_is_here() -> None:
    store.write_local(RECORD)
    in_cluster = replace(RECORD, text="", lacks="too large")
    assert store.complete_from_local(in_cluster, "prod") == RECORD
    assert store.complete_from_local(in_cluster, "another") == in_cluster
    assert store.complete_from_local(replace(in_cluster, id="of another machine"), "prod").lacks == "too large"


@pytest.mark.usefixtures("state")
def test_the_newest_are_kept_among_them_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What killed processes were writing goes as well; what another process is writing stays."""
    monkeypatch.setattr(store, "_LOCAL_LIMIT", 3)
    folder = store.local_folder("prod")
    folder.mkdir(parents=True)
    old, new = (folder / f".2026010{day}T000000.000000Z-abc.json.4711" for day in (1, 9))
    for draft in (old, new):
        draft.write_text("{", encoding="utf-8")
    paths = [store.write_local(replace(RECORD, id=f"2026010{day}T000000.000000Z-abc")) for day in range(2, 6)]
    assert {*folder.iterdir()} == {*paths[-2:], new}


def test_a_folder_that_cannot_be_written_fails_no_run(state: Path) -> None:
    state.write_text("a file where the folder should be")
    assert store.write_local(RECORD) is None


ME, OTHER = "me@here pid 1 start 2", "other@there pid 3 start 4"
RUN = Record(id="b", number=7, ending=Ending.SUCCEEDED, began="t1", ended="t2", holder=ME, tool="1.0", text="name: é\n")


def _runs(*endings: Ending, text: str = "name: x\n") -> tuple[Record, ...]:
    return tuple(
        Record(id=f"run-{number:03}", number=number, ending=ending, holder=OTHER, text=text)
        for number, ending in enumerate(endings, 1)
    )


def _texts(*records: Record) -> dict[str, str]:
    return {record.id: encode(record) for record in records}


def test_a_record_comes_back_as_it_was_written() -> None:
    full = replace(RUN, inventory="i", release="26.7.0", plan="p", changed=3, reason="r", back_to=2, lacks="l")
    assert decode("b", encode(full)) == full
    readable = json.loads(encode(RUN))
    assert {"number": 7, "ending": "succeeded", "tool": "1.0"}.items() <= readable.items(), "by people, with kubectl"
    newer = json.dumps({**readable, "schema": 9, "tool": "9.0", "weather": "fine"})
    assert decode("b", newer) == replace(RUN, tool="9.0"), "as far as it is known"


DAMAGED = data_file.document((Path(__file__).parent / "data" / "damaged.yaml").read_text())
DAMAGED += ["[" * 100_000, encode(RUN)[:-9], encode(replace(RUN, text="x" * (1 << 20) + "x"))]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:40] or "nothing")
def test_a_damaged_record_is_none(line: str) -> None:
    """Also one that unpacks to more than an inventory may have."""
    assert decode("b", line) is None
    assert decode("b", encode(replace(RUN, text="x" * (1 << 20)))) is not None
    assert parse_history({"b": encode(RUN), "a": line}, "") == History((RUN,), ("a",))


def test_an_inventory_too_large_for_its_share_is_left_out() -> None:
    noise = random.Random(1).randbytes(120_000).hex()  # noqa: S311 - what cannot be packed, not a secret
    assert fit_to_size(RUN, 10) == RUN
    small = fit_to_size(replace(RUN, text=noise), 10)
    assert (small.text, small.number) == ("", 7)
    assert "too large" in small.lacks
    assert len(encode(small)) * 12 < OBJECT_BYTES


def test_a_run_without_a_number_comes_after_those_with_one() -> None:
    """Whatever the clocks of machines say."""
    early = replace(RUN, id="a", number=0)
    late = replace(RUN, id="c", number=0)
    assert [(each.id, each.number) for each in number_records([late, RUN, early])] == [("b", 7), ("a", 8), ("c", 9)]


def test_a_run_without_an_end_and_lock_was_interrupted() -> None:
    running = replace(RUN, ending=Ending.RUNNING, ended="")
    assert parse_history(_texts(running), ME).records[0].ending is Ending.RUNNING
    for holder in ("", OTHER):
        history = parse_history(_texts(running), holder)
        assert history.records[0].ending is Ending.INTERRUPTED
        (told,) = unfinished_runs(history)
        for known in (told, replace(RUN, ending=Ending.INTERRUPTED)):
            assert unfinished_runs(parse_history(_texts(known), holder)) == (), "told once"


def test_the_newest_are_kept_and_the_last_that_succeeded() -> None:
    """After many failures there is still a way back."""
    good, bad = Ending.SUCCEEDED, Ending.FAILED
    assert expired_records(History(_runs(good, good, bad)), 3) == ()
    assert expired_records(History(_runs(good, good, bad)), 2) == ("run-001",)
    assert expired_records(History(_runs(good, good, bad, bad, bad)), 2) == ("run-001", "run-003")
    assert expired_records(History(_runs(good), ("x",)), 2) == ()
    assert expired_records(History(_runs(good, good), ("x",)), 2) == ("x",)


def test_the_digest_of_a_plan_names_fields_and_no_values() -> None:
    def plan(path: str, new: str) -> Plan:
        fields = (FieldChange(path, "a", new),)
        change = Change(component="c", action=Action.UPDATE, ref=ObjectRef("v1", "Secret", "n", "s"), fields=fields)
        return Plan(inventory="i", release="r", cluster="c", components=("c",), changes=(change,))

    assert plan_digest(plan("data.key", "one")) == plan_digest(plan("data.key", "two"))
    assert plan_digest(plan("data.key", "one")) != plan_digest(plan("data.other", "one"))
