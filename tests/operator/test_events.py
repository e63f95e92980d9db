from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gpu_provision.kube.client import Cluster
from gpu_provision.operator.status import join_sentences, truncate
from gpu_provision.operator.telemetry import StackEvent, condition_events, record_event
from tests.hostile import MIXED, MIXED_SHOWN


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    rows = [{"type": kind, "status": each, "reason": why, "message": ""} for kind, (each, why) in conditions.items()]
    return {"conditions": rows}


WELL = status(Ready=("True", "AllReady"), Progressing=("False", "NothingToDo"), Degraded=("False", "AsExpected"))
BROKEN = status(Ready=("False", "NodesFailed"), Progressing=("False", "NothingToDo"), Degraded=("True", "NodesFailed"))


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(note.reason, note.is_warning) for note in condition_events(before, after, "main")]


def test_what_stays_as_it_is_is_no_news() -> None:
    assert told(WELL, WELL) == []


def test_what_begins_is_told_and_trouble_is_a_warning() -> None:
    assert told({}, WELL) == [("AllReady", False)]
    assert told(WELL, BROKEN) == [("NodesFailed", True)]


def test_the_end_of_trouble_is_told_with_what_it_was() -> None:
    found = [note for note in condition_events(BROKEN, WELL, "main") if note.reason == "Recovered"]
    assert found == [StackEvent(reason="Recovered", message="what stood in the way is over: NodesFailed", stack="main")]


def test_another_kind_of_trouble_is_news() -> None:
    other = status(Degraded=("True", "InvalidSpec"))
    assert told(BROKEN, other) == [("InvalidSpec", True)]


def test_an_event_shows_what_would_steer_a_terminal() -> None:
    """A message may hold what a pod printed, and anything that prints Events prints it."""
    created: list[dict[str, Any]] = []
    cluster = cast("Cluster", SimpleNamespace(create=created.append))
    stack = {"apiVersion": "v1", "kind": "GPUStack", "metadata": {"name": "main", "uid": "u"}}
    record_event(cluster, stack, StackEvent(reason="Failed", message=MIXED * 100))
    assert created[0]["message"].startswith(MIXED_SHOWN)
    assert len(created[0]["message"]) == 1024


def test_a_long_text_ends_in_a_sign_that_there_is_more() -> None:
    assert truncate("abcdef", 4) == "abc…"
    assert truncate("abcd", 4) == "abcd"


def test_sentences_are_left_out_as_a_whole_and_counted() -> None:
    found = join_sentences(["a" * 30] * 9, 100)
    assert found == f"{'a' * 30}; {'a' * 30}; and 7 more"
    assert join_sentences(["a", "b"], 100) == "a; b"


def test_a_sentence_that_is_too_long_by_itself_is_told_in_part() -> None:
    found = join_sentences(["a" * 300, "b"], 100)
    assert len(found) <= 100
    assert found.endswith("…; and 1 more")
