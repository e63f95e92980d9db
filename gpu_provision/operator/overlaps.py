"""Which stacks want the same nodes. Exactly one stack owns a node: the one that was there first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one stack wants.

    Attributes:
        since: When the stack was made, RFC 3339.
        nodes: Names of the GPU nodes that it looks after.
    """

    stack: str
    since: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whom a stack has to give way to, and over which nodes."""

    owner: str
    nodes: tuple[str, ...]


def overlaps(claims: Iterable[Claim]) -> Mapping[str, Overlap]:
    """Return for every stack that has to give way as a whole the first one that it has to give way to.

    A stack that gives way owns nothing, so that it hinders nobody.
    """
    owners: list[Claim] = []
    found: dict[str, Overlap] = {}
    for claim in sorted(claims, key=lambda each: (each.since, each.stack)):
        first = next((owner for owner in owners if owner.nodes & claim.nodes), None)
        if first:
            found[claim.stack] = Overlap(first.stack, tuple(sorted(first.nodes & claim.nodes)))
        else:
            owners.append(claim)
    return found
