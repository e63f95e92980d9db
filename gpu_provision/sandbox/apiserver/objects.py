"""Small tools for objects as plain dicts.

Convention: an object that is in the store is never changed again; to change one, copy it first.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, TypeVar

from gpu_provision.sandbox.api import Object

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a deep copy of a JSON value (several times faster than copy.deepcopy)."""
    return _copied(value)  # type: ignore[no-any-return]


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) if type(item) is dict or type(item) is list else item for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def now() -> str:
    """Return the time as Kubernetes writes it, in whole seconds."""
    return stamp(dt.datetime.now(dt.UTC))


def stamp(moment: dt.datetime) -> str:
    """Return a moment as Kubernetes writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> dt.datetime | None:
    """Read a timestamp, with or without a fraction; None if it is no timestamp."""
    try:
        return dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def dumped(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def at(value: Any, *path: str) -> Any:
    """Return what lies under a path of keys, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def meta(obj: Object) -> Object:
    """Return the object's metadata."""
    metadata: Object = obj["metadata"]
    return metadata


def key_of(obj: Object) -> tuple[str, str]:
    """Return namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
