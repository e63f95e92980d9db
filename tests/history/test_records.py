"""Records of runs: what is kept, for how long, and what damage does."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from gpu_provision.history.records import (
    OBJECT_BYTES,
    decode,
    encode,
    expired,
    fit_to_size,
    number_records,
    parse_history,
    plan_digest,
    unfinished,
)
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.plan import Action, Change, FieldChange, Plan

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


def test_people_can_read_a_record_but_for_its_inventory() -> None:
    assert {"number": 7, "ending": "succeeded", "tool": "1.0"}.items() <= json.loads(encode(RUN)).items()


def test_what_a_newer_tool_wrote_is_read_as_far_as_it_is_known() -> None:
    line = json.dumps({**json.loads(encode(RUN)), "schema": 9, "tool": "9.0", "weather": "fine"})
    assert decode("b", line) == replace(RUN, tool="9.0")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        '{"ending": "on fire"}',
        '{"ending": "failed", "number": "many"}',
        '{"ending": "failed", "inventory_gz": "?"}',
        '{"ending": "failed", "inventory_gz": "H4sIAAAA"}',
        "[" * 100_000,
        encode(RUN)[:-9],
    ],
)
def test_a_damaged_record_is_none(line: str) -> None:
    assert decode("b", line) is None


def test_what_unpacks_to_more_than_an_inventory_is_not_unpacked() -> None:
    assert decode("b", encode(replace(RUN, text="x" * (1 << 20)))) is not None
    assert decode("b", encode(replace(RUN, text="x" * (1 << 20) + "x"))) is None


def test_an_inventory_too_large_for_its_share_is_left_out() -> None:
    noise = random.Random(1).randbytes(120_000).hex()  # noqa: S311 - what cannot be packed, not a secret
    assert fit_to_size(RUN, 10) == RUN
    small = fit_to_size(replace(RUN, text=noise), 10)
    assert (small.text, small.number) == ("", 7)
    assert "too large" in small.lacks
    assert len(encode(small)) * 12 < OBJECT_BYTES


def test_damaged_records_are_named_and_count_for_nothing() -> None:
    history = parse_history({**_texts(RUN), "a": "{"}, "")
    assert (history.damaged, history.records) == (("a",), (RUN,))


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
        (told,) = unfinished(history)
        assert unfinished(parse_history(_texts(told), holder)) == (), "told once"


def test_a_recorded_interruption_is_not_reported_again() -> None:
    assert unfinished(parse_history(_texts(replace(RUN, ending=Ending.INTERRUPTED)), "")) == ()


def test_the_newest_are_kept_and_the_last_that_succeeded() -> None:
    """After many failures there is still a way back."""
    good, bad = Ending.SUCCEEDED, Ending.FAILED
    assert expired(History(_runs(good, good, bad)), 3) == ()
    assert expired(History(_runs(good, good, bad)), 2) == ("run-001",)
    assert expired(History(_runs(good, good, bad, bad, bad)), 2) == ("run-001", "run-003")
    assert expired(History(_runs(good), ("x",)), 2) == ()
    assert expired(History(_runs(good, good), ("x",)), 2) == ("x",)


def test_rollback_goes_to_the_newest_other_success() -> None:
    first, second, third, fourth = _runs(Ending.SUCCEEDED, Ending.SUCCEEDED, Ending.FAILED, Ending.SUCCEEDED)
    other = replace(first, text="name: other\n")
    assert History((other, second, third, fourth)).before(fourth, _by_text) == other
    assert History((first, second, third, fourth)).before(fourth, _by_text) is None
    assert History((other, second, replace(third, text="name: bad\n"), fourth)).before(fourth, _by_text) == other
    without = replace(other, text="", lacks="too large")
    assert History((without, second)).before(second, _by_text) is None


def _by_text(one: Record, other: Record) -> bool:
    return one.text == other.text


def test_the_digest_of_a_plan_names_fields_and_no_values() -> None:
    def plan(path: str, new: str) -> Plan:
        fields = (FieldChange(path, "a", new),)
        change = Change(component="c", action=Action.UPDATE, ref=ObjectRef("v1", "Secret", "n", "s"), fields=fields)
        return Plan(inventory="i", release="r", cluster="c", components=("c",), changes=(change,))

    assert plan_digest(plan("data.key", "one")) == plan_digest(plan("data.key", "two"))
    assert plan_digest(plan("data.key", "one")) != plan_digest(plan("data.other", "one"))
