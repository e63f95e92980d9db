"""Who gets a slot: candidates in order, within the limits of their domain and of the fleet. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.rollout import leaving, limits
from gpu_provision.rollout.gate import Gate
from gpu_provision.rollout.limits import Budget
from gpu_provision.rollout.snapshot import Node, Policy, Snapshot

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
    counts = {name: limits.count(found) for name, found in members.items()}
    fleet = limits.budget(
        FLEET, counts.values(), parallel=shared.max_parallel_upgrades, unavailable=shared.max_unavailable
    )
    own = {
        name: limits.budget(
            name,
            (counts[name],),
            parallel=domain.policy.max_parallel_upgrades,
            unavailable=domain.policy.max_unavailable,
        )
        for name, domain in policy.domains.items()
    }
    return fleet, own
