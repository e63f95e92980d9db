"""How many nodes may be under way and unavailable: pure arithmetic on counts, one budget per scope."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpu_provision.rollout.snapshot import Node
from gpu_provision.rollout.states import UNDER_WAY


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
