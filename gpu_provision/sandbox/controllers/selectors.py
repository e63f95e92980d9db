"""Label selectors as objects write them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Labels = Mapping[str, str]

_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = MappingProxyType(
    {
        "In": lambda value, values: value in values,
        "NotIn": lambda value, values: value not in values,
        "Exists": lambda value, _: value is not None,
        "DoesNotExist": lambda value, _: value is None,
        "Gt": lambda value, values: _compared(value, values, larger=True),
        "Lt": lambda value, values: _compared(value, values, larger=False),
    }
)


def _compared(value: str | None, values: list[str], *, larger: bool) -> bool:
    try:
        have, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if larger else have < limit


def requirement_matches(requirement: Mapping[str, Any], labels: Labels) -> bool:
    """Whether the labels meet one ``{key, operator, values}``; an unknown operator is never met."""
    operator = _OPERATORS.get(requirement["operator"])
    return operator is not None and operator(labels.get(requirement["key"]), list(requirement.get("values") or ()))


def equals(wanted: Labels | None, labels: Labels) -> bool:
    """Whether all wanted pairs are among the labels."""
    return all(labels.get(key) == value for key, value in (wanted or {}).items())


def matches(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Whether a LabelSelector selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    return equals(selector.get("matchLabels"), labels) and all(
        requirement_matches(one, labels) for one in selector.get("matchExpressions") or ()
    )
