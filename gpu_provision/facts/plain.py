"""Values as JSON knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Return a value with records and mappings as dicts, sets as sorted lists, members of an Enum as their value."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case set() | frozenset():
            return sorted(map(plain, value))
        case list() | tuple():
            return [plain(each) for each in value]
        case Enum():
            return plain(value.value)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value if isinstance(value, bool | int | float | None) else str(value)
