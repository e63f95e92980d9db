"""An inventory -> the policy of its rollouts: which nodes share limits, and which limits. Pure."""

from __future__ import annotations

from gpu_provision.model.inventory import Inventory, NodePool
from gpu_provision.rollout.snapshot import Domain, Policy

SHARED = "nodes without a policy of their own"
"""Domain of the pools that go by the inventory's own upgrade policy."""


def policy_of(inventory: Inventory) -> Policy:
    """Return the policy that an inventory declares."""
    own = {domain_of(pool): _domain(pool) for pool in inventory.pools.values() if pool.overrides_upgrades}
    driver = inventory.specs.driver
    shared = Domain(policy=driver.upgrade_policy, restart_seconds=driver.timeout)
    return Policy(fleet=inventory.rollout, domains={SHARED: shared, **own})


def evicts(inventory: Inventory) -> bool:
    """Whether runs evict GPU pods: where they replace drivers, or take the stack off nodes that left the inventory."""
    drivers = (inventory.specs.driver, *(pool.driver for pool in inventory.pools.values()))
    return any(each.upgrade_policy.auto_upgrade for each in drivers)


def domain_of(pool: NodePool) -> str:
    """Return the name of the domain that a pool's nodes are in."""
    return f"pool {pool.name}" if pool.overrides_upgrades else SHARED


def _domain(pool: NodePool) -> Domain:
    return Domain(policy=pool.driver.upgrade_policy, restart_seconds=pool.driver.timeout)
