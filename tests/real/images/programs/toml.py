"""Writes TOML, as far as containerd's configuration needs it. The standard library reads TOML only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document of tables, strings, numbers, booleans and lists of these as TOML."""
    return "".join(_table((), document))


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    if path:
        yield f"[{'.'.join(map(json.dumps, path))}]\n"
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{json.dumps(key)} = {_value(value)}\n"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _table((*path, key), value)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
