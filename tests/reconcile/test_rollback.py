"""Where a fleet goes back to."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from gpu_provision.history import rollback as module
from gpu_provision.history.rollback import active_inventory, find_rollback_target, restore_inventory
from gpu_provision.inventory import load
from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import OnFailure
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.reconcile.reading import Reading
from tests.documents import CHECKOUT
from tests.inventory.planted import VALID

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
    found, told = find_rollback_target(READING, History((DRIVER,)), OWN)
    assert found
    assert told == ()
    assert (found.name, found.record, found.inventory.specs.driver.image.version) == ("run 1", DRIVER, "580.126.20")


def test_a_planted_record_gives_it_nothing_but_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The automatic way back of a rollout, and what a controller holds a stack to."""
    text = f'{VALID}name: x\nrelease: "25.10.1"\n'
    expected, _ = restore_inventory(replace(DRIVER, text='name: x\nrelease: "25.10.1"\npools: {t4: {}}\n'), NOW)
    found, _ = find_rollback_target(READING, History((replace(DRIVER, text=text),)), OWN)
    monkeypatch.setattr(module, "read_history", lambda *_: History((replace(BACK, text=text),)))
    held = active_inventory(cast("Cluster", None), NOW)
    assert found
    assert held
    assert found.inventory == held.inventory == expected
    assert "evil" not in repr(expected)
    assert expected.release == "25.10.1"


@pytest.mark.parametrize(
    ("earlier", "told"),
    [
        ((), []),
        ((replace(DRIVER, ending=Ending.FAILED),), []),
        ((DRIVER, PLUGIN), []),
        ((DRIVER, replace(PLUGIN, text=f"{NOW.text}driver: {{env: {{A: b}}}}\n")), ["GP335"]),
        ((replace(DRIVER, text="{"),), ["GP106", "GP336"]),
        ((DRIVER, replace(PLUGIN, text=f'{NOW.text}driver: {{version: "570.99.01"}}\n')), ["GP338"]),
    ],
    ids=["no run", "failed", "the same drivers", "only settings", "damaged", "an unknown version"],
)
def test_without_such_a_run_there_is_no_way(earlier: tuple[Record, ...], told: list[str]) -> None:
    """The last good run decides: going further back would undo more than what failed. Findings say why."""
    found, findings = find_rollback_target(READING, History(earlier), OWN)
    assert (found, [each.code for each in findings]) == (None, told)


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ((DRIVER, OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN, BACK, replace(BACK, id="e", number=11, only="hosts", text=PLUGIN.text)), (1, "580.126.20")),
        ((OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN), None),
    ],
    ids=["went back", "hosts were changed since", "the first one is off the record", "did not go back"],
)
def test_what_a_stack_went_back_to_is_on_record(
    monkeypatch: pytest.MonkeyPatch, runs: tuple[Record, ...], found: tuple[int, str] | None
) -> None:
    monkeypatch.setattr(module, "read_history", lambda *_: History(runs))
    held = active_inventory(cast("Cluster", None), NOW)
    assert (held and (held.run, held.inventory.specs.driver.image.version)) == found


def test_nobody_goes_back_unasked_or_twice() -> None:
    history = History((DRIVER,))
    assert find_rollback_target(_reading(NOW, OnFailure.PAUSE), history, OWN) == (None, ())
    assert find_rollback_target(READING, history, replace(OWN, back_to=1)) == (None, ())
