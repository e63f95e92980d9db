"""The way back, and what stands in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.engine import history
from gpu_provision.inventory import load
from gpu_provision.inventory.hiding import hidden
from gpu_provision.model.findings import InvalidInventory, RunFailed, Severity, UsageError
from gpu_provision.model.history import Ending, History, Record
from tests.documents import CHECKOUT

NOW = load(CHECKOUT / "inventories" / "sandbox.yaml")
RUN = Record(id="a", number=3, ending=Ending.SUCCEEDED, tool="0.0.1", text=hidden(NOW.text))


def test_a_run_that_is_not_on_record_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="on record: 3"):
        history.chosen(History((RUN,)), 4)
    assert history.chosen(History((RUN,)), 3) == RUN


def test_there_has_to_be_something_to_go_back_to() -> None:
    other = replace(RUN, id="b", number=4, text="name: other\n")
    assert history.before_last(History((RUN, other)), NOW) == RUN
    reads_otherwise = replace(RUN, number=4, text=f"# the same\n{RUN.text}")
    for found in (
        History(()),
        History((RUN,)),
        History((RUN, replace(RUN, number=4))),
        History((RUN, reads_otherwise)),
    ):
        with pytest.raises(UsageError, match="GP331"):
            history.before_last(found, NOW)


def test_the_way_back_to_the_same_is_the_same() -> None:
    found, findings = history.inventory_of(RUN, NOW)
    assert replace(found, digest=NOW.digest, text=NOW.text) == NOW, "a record has no comments"
    assert findings == ()


def test_other_machines_are_told() -> None:
    then = replace(RUN, text=NOW.text.replace("name: t4-2", "name: t4-9"))
    _, findings = history.inventory_of(then, NOW)
    assert {(each.code, each.evidence, each.severity) for each in findings} == {
        ("GP335", "t4-2", Severity.WARNING),
        ("GP335", "t4-9", Severity.WARNING),
    }


@pytest.mark.parametrize(
    ("run", "error", "code"),
    [
        (replace(RUN, text="", lacks="its inventory was made in Python"), RunFailed, "GP332"),
        (replace(RUN, text=NOW.text + "driver: {env: {TOKEN: (not shown)}}\n"), RunFailed, "GP333"),
        (replace(RUN, text=NOW.text + "weather: fine\n"), InvalidInventory, "GP336"),
        (replace(RUN, text="{"), InvalidInventory, "GP336"),
    ],
)
def test_what_bars_the_way_back_is_told(run: Record, error: type[Exception], code: str) -> None:
    with pytest.raises(error, match=code):
        history.inventory_of(run, NOW)
