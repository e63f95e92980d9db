"""Text of bounded length."""

from __future__ import annotations

from collections.abc import Iterable


def join_limited(items: Iterable[str], limit: int, separator: str = ", ") -> str:
    """Join at most ``limit`` items, and count the rest: ``a, b and 3 more``."""
    every = list(items)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return separator.join(every[:limit]) + more
