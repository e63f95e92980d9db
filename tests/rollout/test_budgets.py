"""Slots and maintenance windows, also where the GPU Operator stops without a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, reset_tzpath

import pytest
import yaml

from gpu_provision.inventory import load
from gpu_provision.model.rollout_policy import Day, MaintenanceWindow, Order, RolloutPolicy, UpgradePolicy
from gpu_provision.rollout.budgets import SHARED, domain_of, policy_of
from gpu_provision.rollout.snapshot import BudgetDomain, DesiredContent, FleetNode, Pod, Policy
from tests.rollout.rules import starts
from tests.rollout.world import Machine, Trouble, World


def world(
    count: int, *, parallel: int = 1, away: int | str = "25%", fleet: RolloutPolicy | None = None, **others: Machine
) -> World:
    machines = [others.get(f"node_{number}") or Machine(name=f"node-{number}") for number in range(1, count + 1)]
    shared = BudgetDomain(policy=UpgradePolicy(max_parallel_upgrades=parallel, max_unavailable=away))
    own = BudgetDomain(policy=UpgradePolicy(max_parallel_upgrades=parallel, max_unavailable=away))
    return World(machines, Policy(fleet=fleet or RolloutPolicy(), domains={"shared": shared, "own": own}))


def first_starts(found: World) -> list[str]:
    """Return the nodes that start at the first moment at which any does."""
    while not (names := starts(found.decisions[-1]) if found.decisions else []):
        if not found.step():
            return []
    return names


@pytest.mark.parametrize(
    ("count", "parallel", "away", "slots"),
    [(4, 1, "25%", 1), (10, 5, "25%", 3), (10, 0, "25%", 3), (10, 2, "100%", 2), (10, 0, "100%", 10), (1, 1, "25%", 1)],
)
def test_slots_of_a_healthy_fleet_are_those_of_the_reference(
    count: int, parallel: int, away: int | str, slots: int
) -> None:
    """The smaller of both limits counts; zero parallel upgrades mean no limit of that kind."""
    assert len(first_starts(world(count, parallel=parallel, away=away))) == slots


def test_a_cordoned_node_uses_up_the_limit_but_may_start() -> None:
    """With 4 nodes and 25 % the reference starts nothing either, without a reason."""
    cordoned = Machine(name="node-3", cordoned_by="kubectl-cordon", is_foreign=True)
    found = world(4, node_3=cordoned)
    assert first_starts(found) == ["node-3"]
    found.run()
    assert found.decisions[-1].wait_reasons["node-1"] == "no more than 1 of shared unavailable (max_unavailable)"
    assert cordoned.cordoned_by == "kubectl-cordon"


def test_a_failed_node_takes_no_parallel_slot() -> None:
    """In the reference a failed node holds the only slot, and the fleet stands still without a word."""
    broken = Machine(name="node-1", trouble=Trouble.DISPROVEN)
    found = world(4, away="50%", fleet=RolloutPolicy(stop_after_failures=2), node_1=broken)
    found.run()
    assert found.restarts == ["node-1", "node-2", "node-3", "node-4"]


def own_pool() -> dict[str, Machine]:
    return {f"node_{number}": Machine(name=f"node-{number}", domain="own") for number in (3, 4)}


def test_the_limit_of_the_fleet_holds_over_all_pools() -> None:
    """The reference counts for each pool alone."""
    assert first_starts(world(4, parallel=1, away=1, **own_pool())) == ["node-1", "node-3"]
    capped = world(4, parallel=1, away=1, fleet=RolloutPolicy(max_parallel_upgrades=1), **own_pool())
    assert first_starts(capped) == ["node-1"]
    assert capped.decisions[-1].wait_reasons["node-3"] == "1 at a time in the fleet (max_parallel_upgrades)"
    few = world(4, parallel=1, away=1, fleet=RolloutPolicy(max_unavailable="25%"), **own_pool())
    assert first_starts(few) == ["node-1"]


def node(name: str, position: int = 0, *pods: Pod) -> FleetNode:
    return FleetNode(name=name, domain="d", desired=DesiredContent("x"), position=position, pods=pods)


TEXT = """
name: stack
release: "26.7.0"
cluster: {sandbox: default}
driver: {timeout: 900, upgrade_policy: {max_parallel_upgrades: 2}}
rollout: {order: listed}
pools:
  plain: {gpu: {model: T4, count: 1}}
  newer: {gpu: {model: T4, count: 1}, driver: {version: "580.126.20"}}
  slow: {gpu: {model: T4, count: 1}, driver: {timeout: 1800, upgrade_policy: {max_unavailable: 1}}}
nodes:
  - {name: a, pool: plain}
  - {name: b, pool: newer}
  - {name: c, pool: slow}
"""


def test_a_pool_has_own_limits_if_it_declares_a_policy(tmp_path: Path) -> None:
    """Another driver alone is no reason; a policy of its own starts from the inventory's."""
    file = tmp_path / "stack.yaml"
    file.write_text(TEXT)
    inventory = load(file)
    assert {name: domain_of(pool) for name, pool in inventory.pools.items()} == {
        "plain": SHARED,
        "newer": SHARED,
        "slow": "pool slow",
    }
    policy = policy_of(inventory)
    assert policy.fleet.order is Order.LISTED
    shared, slow = policy.domains[SHARED], policy.domains["pool slow"]
    assert (shared.policy.max_parallel_upgrades, shared.policy.max_unavailable) == (2, "25%")
    assert (slow.policy.max_parallel_upgrades, slow.policy.max_unavailable) == (2, 1)
    assert (shared.restart_seconds, slow.restart_seconds) == (900, 1800)
    file.write_text(TEXT.replace("timeout: 1800, ", ""))
    assert not load(file).pools["slow"].overrides_driver, "a policy alone makes no other DaemonSet"


BERLIN = "Europe/Berlin"
MOMENTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
NIGHT = MaintenanceWindow(days=(Day.SATURDAY,), start="22:30", minutes=240, timezone=BERLIN)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()


@pytest.mark.parametrize(("moment", "opened"), MOMENTS["open"])
def test_a_window_is_open_for_its_minutes_from_its_start(moment: str, *, opened: bool) -> None:
    """The start is in it, the end is not."""
    assert NIGHT.is_open(at(moment)) is opened


@pytest.mark.parametrize(("moment", "opening"), MOMENTS["next"])
def test_the_next_window_is_known(moment: str, opening: str) -> None:
    """A run waits for it, or reports it."""
    assert NIGHT.next_opening(at(moment)) == at(opening)


@pytest.fixture
def _without_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ["tzdata", *(name for name in sys.modules if name.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, module, None)
    ZoneInfo.clear_cache()
    reset_tzpath([])
    yield
    reset_tzpath()


@pytest.mark.usefixtures("_without_time_zones")
def test_utc_is_known_also_where_no_time_zone_is() -> None:
    """In a small image, whose controller would refuse every stack."""
    assert MaintenanceWindow(start="12:00").next_opening(0.0) == 12 * 3600
    with pytest.raises(ZoneInfoNotFoundError):
        NIGHT.is_open(0.0)
