"""Where a fleet goes back to."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from gpu_provision.cluster.client import Cluster
from gpu_provision.engine import way_back as module
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.way_back import in_force, way_back
from gpu_provision.inventory import load
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.upgrade import OnFailure
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from tests.documents import CHECKOUT

NOW = load(CHECKOUT / "inventories" / "sandbox.yaml")
OWN = Record(id="own", number=9, text=NOW.text)
DRIVER = Record(id="a", number=1, ending=Ending.SUCCEEDED, text=f'{NOW.text}driver: {{version: "580.126.20"}}\n')
BACK = replace(DRIVER, id="d", number=10, back_to=1)
PLUGIN = replace(DRIVER, id="b", number=2, text=NOW.text.replace("v0.20.0", "v0.19.3"))


def _reading(inventory: Inventory, on_failure: OnFailure) -> Reading:
    stack = replace(inventory, rollout=replace(inventory.rollout, on_failure=on_failure))
    context, desired = prepare(stack, ClusterFacts())
    observed = Observed(cluster="c", facts=ClusterFacts())
    return Reading(context, desired, observed, plan(context, desired, observed, ()))


READING = _reading(NOW, OnFailure.ROLLBACK)


def test_it_goes_back_to_other_drivers_that_were_well() -> None:
    found = way_back(READING, History((DRIVER,)), OWN)
    assert found
    assert (found.name, found.record, found.inventory.specs.driver.image.version) == ("run 1", DRIVER, "580.126.20")


@pytest.mark.parametrize(
    "earlier",
    [
        (),
        (replace(DRIVER, ending=Ending.FAILED),),
        (DRIVER, PLUGIN),
        (replace(DRIVER, text="{"),),
        (replace(DRIVER, text=f"{DRIVER.text}proxy: {{http_proxy: http://(not shown)@h}}\n"),),
    ],
    ids=["no run", "failed", "the same drivers", "damaged", "secrets are gone"],
)
def test_without_such_a_run_there_is_no_way(earlier: tuple[Record, ...]) -> None:
    """The last good run decides: going further back would undo more than what failed."""
    assert way_back(READING, History(earlier), OWN) is None


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ((DRIVER, OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN, BACK, replace(BACK, id="e", number=11, only="hosts", text=PLUGIN.text)), (1, "580.126.20")),
        ((OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN), None),
        ((DRIVER, OWN, replace(BACK, text="{")), None),
    ],
    ids=["went back", "hosts were changed since", "the first one is off the record", "did not go back", "damaged"],
)
def test_what_a_stack_went_back_to_is_on_record(
    monkeypatch: pytest.MonkeyPatch, runs: tuple[Record, ...], found: tuple[int, str] | None
) -> None:
    monkeypatch.setattr(module, "read", lambda *_: History(runs))
    held = in_force(cast("Cluster", None), NOW)
    assert (held and (held.run, held.inventory.specs.driver.image.version)) == found


def test_nobody_goes_back_unasked_or_twice() -> None:
    history = History((DRIVER,))
    assert way_back(_reading(NOW, OnFailure.PAUSE), history, OWN) is None
    assert way_back(READING, history, replace(OWN, back_to=1)) is None
