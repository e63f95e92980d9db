"""What comes next for each node, again and again: whoever only waits is asked again when something has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_provision.rollout.snapshot import Domain, Node
from gpu_provision.rollout.turn import Turn
from gpu_provision.rollout.turns import turn


class _Waiting(NamedTuple):
    node: Node
    domain: Domain
    is_soaking: bool
    turn: Turn


@dataclass(slots=True)
class Turns:
    """Has the answers of `rollout.turns.turn`. A turn without actions holds until its own time is over."""

    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def __call__(self, node: Node, domain: Domain, now: float, *, is_soaking: bool = False) -> Turn:
        """Return what a node does next."""
        known = self._waiting.get(node.name)
        is_alike = known and known.node is node and known.domain is domain and known.is_soaking is is_soaking
        if known and is_alike and now < known.turn.until:
            return known.turn
        found = turn(node, domain, now, is_soaking=is_soaking)
        if found.actions:
            self._waiting.pop(node.name, None)
        else:
            self._waiting[node.name] = _Waiting(node, domain, is_soaking, found)
        return found
