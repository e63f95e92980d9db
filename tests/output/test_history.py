"""The text of recorded runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_provision import load
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.output import history

RUN = Record(
    id="x",
    number=7,
    ending=Ending.FAILED,
    began="2026-11-21T11:20:00Z",
    ended="2026-11-21T11:21:00Z",
    holder="alice@laptop pid 1 start 2",
    tool="1.0",
    inventory="prod",
    release="26.7.0",
    changed=3,
    reason="driver on t4-1: broken",
    back_to=5,
    text="name: prod\n",
)


def test_a_run_tells_what_it_declared_otherwise() -> None:
    """Versions by component, drivers by pool if pools differ; all other edits as one entry."""
    text = Path("inventories/sandbox.yaml").read_text()
    older = text.replace("version: v0.20.0", "version: v0.19.3")
    one_pool = older.replace(
        "gpu: {model: T4, count: 1}", "gpu: {model: T4, count: 1}\n    driver: {version: 580.126.20}"
    )
    all_pools = f"{older}\ndriver: {{version: 580.126.20}}\n"
    texts = (text, text, older, f"{older}\nhistory: {{keep: 5}}\n", one_pool, all_pools, "", older)
    records = [Record(id=str(number), number=number, text=each) for number, each in enumerate(texts, start=1)]
    assert history.changes_by_run(records, load("inventories/sandbox.yaml")) == {
        3: ("device_plugin v0.20.0 -> v0.19.3",),
        4: ("other settings",),
        5: ("driver (t4) 595.91.07 -> 580.126.20",),
        6: ("driver (h100) 595.91.07 -> 580.126.20",),
        8: ("driver 580.126.20 -> 595.91.07",),
    }


def test_the_newest_run_comes_first() -> None:
    old = Record(id="w", number=6, ending=Ending.INTERRUPTED, holder="bob@ci pid 1 start 2")
    lines = history.text(History((old, RUN))).splitlines()
    assert lines[0].split() == ["RUN", "BEGAN", "ENDED", "RESULT", "RELEASE", "WRITTEN", "BY", "WHAT"]
    assert lines[1].endswith("alice@laptop  rollback to run 5; driver on t4-1: broken")
    assert lines[2].split()[:3] == ["6", "-", "interrupted"]
    assert history.text(History(())).startswith("No run on record")


def test_what_a_killed_run_has_written_is_not_known() -> None:
    """The killed run did not record it."""
    killed = replace(RUN, ending=Ending.INTERRUPTED, ended="", changed=0)
    row = history.text(History((killed,))).splitlines()[1].split()
    assert row[2:7] == ["-", "interrupted", "26.7.0", "-", "alice@laptop"]
    assert "written        -" in history.record_text(killed, {})
    found = history.document(RUN)
    assert (history.document(killed)["changed"], found["changed"]) == (None, 3)
    assert (found["number"], found["ending"], found["who"], "text" in found) == (7, "failed", "alice@laptop", False)


def test_one_run_is_shown_with_its_inventory_and_its_evidence() -> None:
    details = {"evidence": [{"pod": "p", "lines": ["Test PASSED", "Done"]}, {"pod": "q", "lines": []}]}
    told = history.record_text(RUN, details)
    assert [line for line in told.splitlines() if "p: " in line] == ["  p: Done"]
    assert told.endswith("  name: prod")
    assert "alice@laptop" in told
    assert "Test PASSED" not in history.record_text(RUN, {})
