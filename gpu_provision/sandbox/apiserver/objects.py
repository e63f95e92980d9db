"""Small tools for objects as plain dicts.

Convention: an object that is in the store is never changed again; to change one, copy it first.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, TypeVar

from gpu_provision.sandbox.api import Object

T = TypeVar("T")


def deep_copy(value: T) -> T:
    """Return a deep copy of a JSON value (several times faster than copy.deepcopy)."""
    return _copy(value)  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copy(item) if type(item) is dict or type(item) is list else item for key, item in value.items()}
    if type(value) is list:
        return [_copy(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def now() -> str:
    """Return the time as Kubernetes writes it, in whole seconds."""
    return format_time(dt.datetime.now(dt.UTC))


def format_time(moment: dt.datetime) -> str:
    """Return a moment as Kubernetes writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> dt.datetime | None:
    """Read a timestamp, with or without a fraction; None if it is no timestamp."""
    try:
        return dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def to_json(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def at(value: Any, *path: str) -> Any:
    """Return what lies under a path of keys, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def has_condition(obj: Object, kind: str) -> bool:
    """Say whether a condition of an object is true."""
    rows = at(obj, "status", "conditions") or ()
    return any(row.get("type") == kind and row.get("status") == "True" for row in rows)


def key_of(obj: Object) -> tuple[str, str]:
    """Return namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
