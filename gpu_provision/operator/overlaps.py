"""Which stacks want the same nodes, or the same namespace. Exactly one owns it: the one that was there first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one stack wants.

    Attributes:
        since: When the stack was made, RFC 3339.
        nodes: Names of the GPU nodes that it looks after.
        namespace: Where its operands are; their names are the same for every stack.
    """

    stack: str
    since: str
    nodes: frozenset[str]
    namespace: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whom a stack has to give way to, and over what.

    Attributes:
        nodes: Names of nodes that both want.
        namespace: The one that both want; empty if it is about nodes alone.
    """

    owner: str
    nodes: tuple[str, ...]
    namespace: str = ""


def overlaps(claims: Iterable[Claim]) -> Mapping[str, Overlap]:
    """Return for every stack that has to give way as a whole the first one that it has to give way to.

    A stack that gives way owns nothing, so that it hinders nobody.
    """
    owners: list[Claim] = []
    found: dict[str, Overlap] = {}
    for claim in sorted(claims, key=lambda each: (each.since, each.stack)):
        first = next(filter(None, (_overlap(owner, claim) for owner in owners)), None)
        if first:
            found[claim.stack] = first
        else:
            owners.append(claim)
    return found


def _overlap(owner: Claim, other: Claim) -> Overlap | None:
    nodes = tuple(sorted(owner.nodes & other.nodes))
    namespace = owner.namespace if owner.namespace == other.namespace else ""
    return Overlap(owner.stack, nodes, namespace) if nodes or namespace else None
