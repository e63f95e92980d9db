"""Which nodes may start: limits, order, failures, the maintenance window and canaries.

Canaries have an annotation from their start, so that every later decision has the same ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from gpu_provision.model.inventory import Inventory, NodePool
from gpu_provision.model.rollout_policy import Order
from gpu_provision.rollout import predicates, states
from gpu_provision.rollout.canary import admit_canaries
from gpu_provision.rollout.snapshot import Admission, BudgetDomain, FleetNode, HoldReason, Policy, Snapshot
from gpu_provision.rollout.states import UNDER_WAY, UpgradeState


def node_count(value: int | str, total: int) -> int:
    """Return a number of nodes: as it is, or a percentage of ``total``, rounded up as the reference does."""
    if isinstance(value, int):
        return value
    return math.ceil(total * int(value.rstrip("%")) / 100)


@dataclass(slots=True)
class UpgradeBudget:
    """The remaining slots of a scope, such as ``the fleet`` or ``pool a100``.

    Each starting node takes a parallel slot; a node that is unavailable already takes no availability.
    """

    scope: str
    parallel: float
    parallel_limit: float
    available: int
    unavailable_limit: int

    def refusal(self, node: FleetNode) -> str:
        """Return why a node may not start within this scope; empty if it may."""
        if self.parallel < 1:
            return f"{self.parallel_limit:.0f} at a time in {self.scope} (max_parallel_upgrades)"
        if self.available < 1 and not node.is_unavailable:
            return f"no more than {self.unavailable_limit} of {self.scope} unavailable (max_unavailable)"
        return ""

    def acquire(self, node: FleetNode) -> None:
        """Count a node that starts."""
        self.parallel -= 1
        self.available -= 0 if node.is_unavailable else 1

    def release(self, node: FleetNode) -> None:
        """Count a node, in its current state, whose upgrade is over."""
        self.parallel += 1
        self.available += 0 if node.is_unavailable else 1


def _budget(scope: str, nodes: Collection[FleetNode], parallel: int, unavailable: int | str) -> UpgradeBudget:
    limit, allowed = parallel or inf, node_count(unavailable, len(nodes))
    return UpgradeBudget(
        scope=scope,
        parallel=limit - sum(node.state in UNDER_WAY for node in nodes),
        parallel_limit=limit,
        available=allowed - sum(node.is_unavailable for node in nodes),
        unavailable_limit=allowed,
    )


def sort_key(node: FleetNode, order: Order) -> tuple[int, tuple[tuple[str, int], ...], str]:
    """Return the sort key of a node; equals are sorted by name, node-2 before node-10."""
    first = node.position if order is Order.LISTED else 0
    first = len(predicates.gpu_pods(node)) if order is Order.IDLE_FIRST else first
    return first, _natural(node.name), node.name


@lru_cache(maxsize=4096)
def _natural(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def admit(snapshot: Snapshot, policy: Policy, candidates: Sequence[FleetNode]) -> Admission:
    """Return which of the ordered candidates may start; a leaving node is no canary."""
    fleet, leaving = policy.fleet, tuple(node for node in candidates if node.is_leaving)
    canaries = admit_canaries(snapshot, fleet.canary, [node for node in candidates if not node.is_leaving])
    broken = failed_nodes(snapshot)
    if canaries.hold_reason is HoldReason.FAILURES or len(broken) >= fleet.stop_after_failures:
        return Admission(
            HoldReason.FAILURES, canaries.wait_reason or f"the rollout stopped: {', '.join(broken)} failed"
        )
    if fleet.maintenance_window is not None and not fleet.maintenance_window.is_open(snapshot.now):
        opening = fleet.maintenance_window.next_opening(snapshot.now)
        return Admission(HoldReason.WINDOW, "the maintenance window is closed", opening)
    if canaries.hold_reason is HoldReason.CANARIES:
        return replace(canaries, admitted=(*leaving, *canaries.admitted))
    return Admission(HoldReason.NOTHING, admitted=tuple(candidates))


def failed_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the nodes that failed in the upgrade to the current target; earlier failures do not count."""
    return tuple(
        node.name
        for node in snapshot.nodes
        if node.state is UpgradeState.FAILED and not node.exclusion_reason
        if not node.is_leaving
        if node.annotations.get(states.TARGET, node.desired.target) == node.desired.target
    )


FLEET = "the fleet"
"""Scope of all nodes."""


def allocate_slots(
    snapshot: Snapshot, policy: Policy, candidates: tuple[FleetNode, ...], gate: Admission
) -> tuple[tuple[FleetNode, ...], dict[str, str]]:
    """Return the candidates that start now, and why the others do not.

    A candidate that does not fit does not block a later one that does.
    """
    fleet, domains = _budgets(snapshot, policy)
    admitted, waits = {node.name for node in gate.admitted}, dict[str, str]()
    starting = tuple(_take_slots(gate.admitted, fleet, domains, waits))
    closed = {node.name: gate.wait_reason for node in candidates if node.name not in admitted}
    return starting, closed | waits


def plan_rounds(
    snapshot: Snapshot, policy: Policy, candidates: tuple[FleetNode, ...], over: Callable[[FleetNode], FleetNode]
) -> Iterator[tuple[FleetNode, ...]]:
    """Yield the nodes that start in each round, as if every round ended before the next.

    ``candidates`` are in order and wait only for slots; ``over`` returns a node after its upgrade.
    """
    fleet, domains = _budgets(snapshot, policy)
    while started := tuple(_take_slots(candidates, fleet, domains)):
        yield started
        names = {node.name for node in started}
        candidates = tuple(node for node in candidates if node.name not in names)
        for node in map(over, started):
            for scope in (domains[node.domain], fleet):
                scope.release(node)


def _take_slots(
    candidates: Iterable[FleetNode],
    fleet: UpgradeBudget,
    domains: Mapping[str, UpgradeBudget],
    waits: dict[str, str] | None = None,
) -> Iterator[FleetNode]:
    """Take slots, and yield the nodes that have one. ``waits``: gets why the others do not start.

    A refusal of one node holds for all later nodes of the same domain and availability.
    """
    refused = dict[tuple[str, bool], str]()
    for node in candidates:
        if waits is None and not any(scope.parallel >= 1 for scope in domains.values()):
            return
        alike, scopes = (node.domain, node.is_unavailable), (domains[node.domain], fleet)
        refusal = refused.get(alike) or next(filter(None, (scope.refusal(node) for scope in scopes)), "")
        if refusal:
            refused[alike] = refusal
            if waits is not None:
                waits[node.name] = refusal
            continue
        for scope in scopes:
            scope.acquire(node)
        yield node


def _budgets(snapshot: Snapshot, policy: Policy) -> tuple[UpgradeBudget, dict[str, UpgradeBudget]]:
    """Return the budgets of the fleet and of each domain, without nodes that leave at once."""
    shared = policy.fleet
    nodes = [node for node in snapshot.nodes if not (node.is_leaving and predicates.is_free(node))]
    members: dict[str, list[FleetNode]] = {name: [] for name in policy.domains}
    for node in nodes:
        members[node.domain].append(node)
    rules = {name: domain.policy for name, domain in policy.domains.items()}
    return _budget(FLEET, nodes, shared.max_parallel_upgrades, shared.max_unavailable), {
        name: _budget(name, nodes_of_domain, rules[name].max_parallel_upgrades, rules[name].max_unavailable)
        for name, nodes_of_domain in members.items()
    }


SHARED = "nodes without a policy of their own"
"""Domain of the pools with the inventory's own upgrade policy."""


def policy_of(inventory: Inventory) -> Policy:
    """Return the policy that an inventory declares."""
    drivers = {SHARED: inventory.specs.driver}
    drivers |= {domain_of(pool): pool.driver for pool in inventory.pools.values() if pool.overrides_upgrades}
    domains = {
        name: BudgetDomain(policy=each.upgrade_policy, restart_seconds=each.timeout) for name, each in drivers.items()
    }
    return Policy(fleet=inventory.rollout, domains=domains)


def domain_of(pool: NodePool) -> str:
    """Return the name of the domain of a pool's nodes."""
    return f"pool {pool.name}" if pool.overrides_upgrades else SHARED
