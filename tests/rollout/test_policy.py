"""Which nodes share limits."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.model.upgrade import Order
from gpu_provision.rollout.policy import SHARED, domain_of, policy_of

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


def test_a_pool_has_its_own_limits_exactly_if_it_declares_a_policy(tmp_path: Path) -> None:
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


def test_a_policy_alone_does_not_part_a_pool_from_the_daemonset_of_the_others(tmp_path: Path) -> None:
    """Otherwise declaring one would replace its drivers."""
    file = tmp_path / "stack.yaml"
    file.write_text(TEXT.replace("timeout: 1800, ", ""))
    assert not load(file).pools["slow"].overrides_driver
