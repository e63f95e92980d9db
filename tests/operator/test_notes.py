from __future__ import annotations

from typing import Any

from gpu_provision.operator.notes import Note, changes


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    rows = [{"type": kind, "status": each, "reason": why, "message": ""} for kind, (each, why) in conditions.items()]
    return {"conditions": rows}


WELL = status(Ready=("True", "AllReady"), Progressing=("False", "NothingToDo"), Degraded=("False", "AsExpected"))
BROKEN = status(Ready=("False", "NodesFailed"), Progressing=("False", "NothingToDo"), Degraded=("True", "NodesFailed"))


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(note.reason, note.is_warning) for note in changes(before, after, "main")]


def test_what_stays_as_it_is_is_no_news() -> None:
    assert told(WELL, WELL) == []


def test_what_begins_is_told_and_trouble_is_a_warning() -> None:
    assert told({}, WELL) == [("AllReady", False)]
    assert told(WELL, BROKEN) == [("NodesFailed", True)]


def test_the_end_of_trouble_is_told_with_what_it_was() -> None:
    found = [note for note in changes(BROKEN, WELL, "main") if note.reason == "Recovered"]
    assert found == [Note(reason="Recovered", message="what stood in the way is over: NodesFailed", stack="main")]


def test_another_kind_of_trouble_is_news() -> None:
    other = status(Degraded=("True", "InvalidSpec"))
    assert told(BROKEN, other) == [("InvalidSpec", True)]
