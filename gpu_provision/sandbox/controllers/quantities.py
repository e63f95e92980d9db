"""Amounts of resources as Kubernetes writes them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from types import MappingProxyType

Amounts = dict[str, int]
"""Resource name -> amount: cpu in thousandths of a core, all else in whole units."""

_SUFFIXES = MappingProxyType(
    {
        **{suffix: Fraction(1024) ** (i + 1) for i, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
        **{suffix: Fraction(1000) ** (i + 1) for i, suffix in enumerate(("k", "M", "G", "T", "P", "E"))},
        "m": Fraction(1, 1000),
        "u": Fraction(1, 1000**2),
        "n": Fraction(1, 1000**3),
    }
)


@lru_cache(maxsize=4096)
def quantity(written: str) -> Fraction:
    """Read ``100m``, ``4Gi``, ``1e3`` or ``2``. Raises ValueError."""
    for length in (2, 1):
        factor = _SUFFIXES.get(written[-length:])
        if factor is not None and len(written) > length:
            return Fraction(written[:-length]) * factor
    return Fraction(written)


def amounts(written: Mapping[str, str | int] | None) -> Amounts:
    """Read a resource list; amounts that are no quantities count as 0."""
    return {name: _amount(name, str(value)) for name, value in (written or {}).items()}


def _amount(name: str, written: str) -> int:
    try:
        exact = quantity(written)
    except (ValueError, ZeroDivisionError):
        return 0
    return ceil(exact * 1000) if name == "cpu" else ceil(exact)


def total(parts: Iterable[Amounts]) -> Amounts:
    """Add resource lists up."""
    result: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def largest(parts: Iterable[Amounts]) -> Amounts:
    """Return the largest amount of each resource."""
    result: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = max(result.get(name, 0), amount)
    return result
