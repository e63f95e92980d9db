"""The YAML document as a tree that remembers where everything stands in the file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_WORD = re.compile(r"[A-Za-z0-9_-]+")

Path = tuple[str | int, ...]
"""Keys and list positions from the top level down."""


@dataclass(slots=True)
class Item:
    """One value of the document.

    Attributes:
        value: A scalar, or a dict or list of items.
        line: Line of the value, from 1.
        column: Column of the value, from 1.
        raw: The text of a scalar as it stands in the file.
        lines: For a mapping: the line of each key.
        size: Number of values in it, counted as if every alias were written out.
    """

    value: Any
    line: int
    column: int
    raw: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    size: int = 1


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed inventory file.

    Attributes:
        name: The file as the user named it.
        root: The top-level mapping.
        data: The same as plain dicts, lists and scalars.
    """

    name: str
    root: Item
    data: dict[str, Any]

    def item(self, path: Path) -> Item | None:
        """Return the item at a path, or None if the file has none there."""
        item = self.root
        for step in path:
            try:
                item = item.value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return item

    def line(self, path: Path) -> int:
        """Return the line at which a path begins: its key's, or that of the nearest thing around it."""
        item, line = self.root, self.root.line
        for step in path:
            line = item.lines.get(step, line) if isinstance(step, str) else line
            try:
                item = item.value[step]
            except (KeyError, IndexError, TypeError):
                break
            line = item.line if isinstance(step, int) else line
        return line

    def where(self, path: Path) -> str:
        """Return ``file:line path`` for findings."""
        return f"{self.name}:{self.line(path)} {dotted(path)}".rstrip()


def dotted(path: Path) -> str:
    """Return a path as people write it: ``nodes[2].ssh.port``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not _WORD.fullmatch(step):
            text += f'["{step}"]' if step.isprintable() else f"[{visible(step)}]"
        else:
            text += f".{step}"
    return text.removeprefix(".")


def visible(text: str) -> str:
    """Return a text for people: with quotes and escapes if it holds what cannot be seen, such as a newline."""
    return text if text.isprintable() else json.dumps(text)


def plain(item: Item) -> Any:
    """Return the item's value without places."""
    if isinstance(item.value, dict):
        return {key: plain(child) for key, child in item.value.items()}
    if isinstance(item.value, list):
        return [plain(child) for child in item.value]
    return item.value
