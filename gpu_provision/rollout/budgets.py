"""Which nodes may start: the limits of their domain and of the fleet, their order, and the gates.

Gates are failures, the maintenance window and canaries. Pure arithmetic on counts.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import NamedTuple, assert_never

from gpu_provision.model.inventory import Inventory, NodePool
from gpu_provision.model.rollout_policy import Order
from gpu_provision.rollout import canary, leaving, maintenance_window, pods, states
from gpu_provision.rollout.snapshot import Domain, Node, Policy, Snapshot
from gpu_provision.rollout.states import UNDER_WAY, UpgradeState


def nodes_of(value: int | str, total: int) -> int:
    """Return a number of nodes: as it is, or a percentage of ``total``, rounded up as the reference does."""
    if isinstance(value, int):
        return value
    return math.ceil(total * int(value.rstrip("%")) / 100)


@dataclass(slots=True)
class Budget:
    """What a scope has left. ``scope`` is how people name it: ``the fleet``, ``pool a100``.

    Each node counts once. One that is unavailable anyway costs no availability; every node costs a parallel slot.
    """

    scope: str
    parallel: float
    parallel_limit: float
    available: int
    unavailable_limit: int

    def refusal(self, node: Node) -> str:
        """Say why a node may not start within this scope; empty if it may."""
        if self.parallel < 1:
            return f"{self.parallel_limit:.0f} at a time in {self.scope} (max_parallel_upgrades)"
        if self.available < 1 and not node.is_unavailable:
            return f"no more than {self.unavailable_limit} of {self.scope} unavailable (max_unavailable)"
        return ""

    def take(self, node: Node) -> None:
        """Count a node that starts."""
        self.parallel -= 1
        self.available -= 0 if node.is_unavailable else 1

    def give_back(self, node: Node) -> None:
        """Count a node, as it is now, whose upgrade is over."""
        self.parallel += 1
        self.available += 0 if node.is_unavailable else 1


class Count(NamedTuple):
    """How many nodes there are."""

    all: int
    under_way: int
    unavailable: int


def count(nodes: Collection[Node]) -> Count:
    """Count nodes."""
    return Count(len(nodes), sum(node.state in UNDER_WAY for node in nodes), sum(node.is_unavailable for node in nodes))


def budget(scope: str, counts: Iterable[Count], *, parallel: int, unavailable: int | str) -> Budget:
    """Return what is left of the limits of a scope, whose parts are counted; zero for ``parallel`` means no limit."""
    parts = tuple(counts)
    limit, allowed = parallel or inf, nodes_of(unavailable, sum(part.all for part in parts))
    return Budget(
        scope=scope,
        parallel=limit - sum(part.under_way for part in parts),
        parallel_limit=limit,
        available=allowed - sum(part.unavailable for part in parts),
        unavailable_limit=allowed,
    )


Rank = tuple[int, tuple[tuple[str, int], ...], str]


def rank(node: Node, order: Order) -> Rank:
    """Return what nodes are sorted by; names decide between equals, and node-2 comes before node-10."""
    natural = _natural(node.name)
    match order:
        case Order.NAME:
            return 0, natural, node.name
        case Order.LISTED:
            return node.position, natural, node.name
        case Order.IDLE_FIRST:
            return len(pods.holders(node)), natural, node.name
        case _:
            assert_never(order)


@lru_cache(maxsize=4096)
def _natural(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))


class Barrier(StrEnum):
    """What keeps nodes from starting."""

    NOTHING = "nothing"
    FAILURES = "failures"
    WINDOW = "window"
    CANARIES = "canaries"


@dataclass(frozen=True, slots=True)
class Gate:
    """Who may start.

    Attributes:
        waits: Why those who may not have to wait.
        until: When waiting ends by itself, in unix seconds.
        open_to: The candidates that may start, in order.
        as_canaries: Whether they go as canaries.
    """

    barrier: Barrier
    waits: str = ""
    until: float = inf
    open_to: tuple[Node, ...] = ()
    as_canaries: bool = False


def gate(snapshot: Snapshot, policy: Policy, candidates: Sequence[Node]) -> Gate:
    """Return who of the candidates, which are in order, may start. A node that leaves shows nothing as a canary."""
    fleet, leaving = policy.fleet, tuple(node for node in candidates if node.is_leaving)
    stage = canary.stage(snapshot, fleet.canary, [node for node in candidates if not node.is_leaving])
    broken = failed(snapshot)
    if stage.failed or len(broken) >= fleet.stop_after_failures:
        return Gate(Barrier.FAILURES, stage.waits or f"the rollout stopped: {', '.join(broken)} failed")
    if fleet.maintenance_window is not None and not maintenance_window.is_open(fleet.maintenance_window, snapshot.now):
        opening = maintenance_window.next_opening(fleet.maintenance_window, snapshot.now)
        return Gate(Barrier.WINDOW, "the maintenance window is closed", opening)
    if stage.waits:
        return Gate(Barrier.CANARIES, stage.waits, stage.until, (*leaving, *stage.canaries), as_canaries=True)
    return Gate(Barrier.NOTHING, open_to=tuple(candidates))


def failed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the nodes that failed on the way to what is wanted now; earlier failures are no verdict on that."""
    return tuple(
        node.name
        for node in snapshot.nodes
        if node.state is UpgradeState.FAILED and not node.left_out  # a new run is a new chance
        if not node.is_leaving  # which says nothing about a driver
        if node.annotations.get(states.TARGET, node.wanted.digest) == node.wanted.digest
    )


FLEET = "the fleet"
"""How people name all nodes together."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The candidates that start now, and why the others do not."""

    nodes: tuple[Node, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)


def granted(snapshot: Snapshot, policy: Policy, candidates: tuple[Node, ...], gate: Gate) -> Granted:
    """Hand out slots. A candidate that does not fit does not keep a later one from starting that does."""
    fleet, domains = _budgets(snapshot, policy)
    admitted = {node.name for node in gate.open_to}
    waits = {node.name: gate.waits for node in candidates if node.name not in admitted}
    starting, refused = [], dict[_Equals, str]()
    for node in gate.open_to:
        equals, scopes = _equals(node), (domains[node.domain], fleet)
        refusal = refused.get(equals) or next(filter(None, (scope.refusal(node) for scope in scopes)), "")
        if refusal:
            waits[node.name] = refused[equals] = refusal
            continue
        for scope in scopes:
            scope.take(node)
        starting.append(node)
    return Granted(tuple(starting), waits)


def rounds(
    snapshot: Snapshot, policy: Policy, candidates: tuple[Node, ...], over: Callable[[Node], Node]
) -> Iterator[tuple[Node, ...]]:
    """Yield who starts in each round, were every round over before the next begins. The cost grows with nodes alone.

    Args:
        candidates: In order, with nothing but slots in their way.
        over: A node -> the node as it is when its upgrade is over.
    """
    fleet, domains = _budgets(snapshot, policy)
    queues: dict[_Equals, deque[tuple[int, Node]]] = {}
    for place, node in enumerate(candidates):
        queues.setdefault(_equals(node), deque()).append((place, node))
    while started := tuple(_round(queues, fleet, domains)):
        yield started
        for node in map(over, started):
            for scope in (domains[node.domain], fleet):
                scope.give_back(node)


_Equals = tuple[str, bool]
"""Domain, and whether unavailable anyway: where one of these nodes is refused, so are all after it."""


def _equals(node: Node) -> _Equals:
    return node.domain, node.is_unavailable


def _round(
    queues: Mapping[_Equals, deque[tuple[int, Node]]], fleet: Budget, domains: Mapping[str, Budget]
) -> Iterator[Node]:
    waiting = {equals: queue for equals, queue in queues.items() if queue}
    while waiting:
        equals = min(waiting, key=lambda key: waiting[key][0][0])
        _, node = waiting[equals][0]
        scopes = (domains[node.domain], fleet)
        if any(scope.refusal(node) for scope in scopes):
            del waiting[equals]
            continue
        for scope in scopes:
            scope.take(node)
        waiting[equals].popleft()
        if not waiting[equals]:
            del waiting[equals]
        yield node


def _budgets(snapshot: Snapshot, policy: Policy) -> tuple[Budget, dict[str, Budget]]:
    """Return what the fleet and each domain have left. A node that leaves at once counts nowhere."""
    shared = policy.fleet
    nodes = [node for node in snapshot.nodes if not (node.is_leaving and leaving.is_free(node))]
    members: dict[str, list[Node]] = {name: [] for name in policy.domains}
    for node in nodes:
        members[node.domain].append(node)
    counts = {name: count(found) for name, found in members.items()}
    fleet = budget(FLEET, counts.values(), parallel=shared.max_parallel_upgrades, unavailable=shared.max_unavailable)
    own = {
        name: budget(
            name,
            (counts[name],),
            parallel=domain.policy.max_parallel_upgrades,
            unavailable=domain.policy.max_unavailable,
        )
        for name, domain in policy.domains.items()
    }
    return fleet, own


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
