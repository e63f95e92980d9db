"""The part of JSONPath that printer columns and kubectl use: keys, indexes, ``[*]`` and ``[?(@.key=="value")]``."""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(
    r"""\.(?P<key>(?:[^.\[\]\\]|\\.)+)
      | \[['"](?P<quoted>[^'"]+)['"]\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(\s*@\.(?P<field>[\w.]+)\s*==\s*['"](?P<value>[^'"]*)['"]\s*\)\]""",
    re.VERBOSE,
)


def found(value: Any, path: str) -> list[Any]:
    """Return what a path finds; nothing for what is missing or for a path that is not understood."""
    values, at = [value], 0
    text = path if path.startswith((".", "[")) else f".{path}"
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return []
        values = [part for one in values for part in _taken(one, step)]
        at = step.end()
    return [one for one in values if one is not None]


def _taken(value: Any, step: re.Match[str]) -> list[Any]:
    key = step["quoted"] or (step["key"] or "").replace("\\", "")
    if key:
        return [value[key]] if isinstance(value, dict) and key in value else []
    if not isinstance(value, list):
        return list(value.values()) if step["all"] and isinstance(value, dict) else []
    if step["all"]:
        return value
    if step["index"] is not None:
        index = int(step["index"])
        return value[index : index + 1 or None]
    return [row for row in value if isinstance(row, dict) and found(row, step["field"]) == [step["value"]]]
