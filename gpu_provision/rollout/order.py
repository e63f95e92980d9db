"""Which of several nodes goes first. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import assert_never

from gpu_provision.model.upgrade import Order
from gpu_provision.rollout import pods
from gpu_provision.rollout.snapshot import Node

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
