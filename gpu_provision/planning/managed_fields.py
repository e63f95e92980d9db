"""Who wrote which field of an object last, read off ``metadata.managedFields``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import Writer
from gpu_provision.planning.diff import (
    FIELD_MANAGER,
    STEPS,
    Path,
    text_of,
)

Owners = Mapping[str, tuple[Writer, ...]]
"""Path of a field, as in FieldChange -> who owns it."""


def owners(live: Manifest) -> Owners:
    """Return who owns which field of a live object; writers of the status alone are left out."""
    found: dict[str, tuple[Writer, ...]] = {}
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("subresource"):
            continue
        writer = Writer(str(entry.get("manager", "")), str(entry.get("time", "")))
        for path in _paths(entry.get("fieldsV1") or {}, live, ()):
            found[path] = (*found.get(path, ()), writer)
    return found


def _paths(owned: Mapping[str, Any], live: Any, path: Path) -> Iterator[str]:
    for element, below in owned.items():
        if element == ".":
            continue
        kind, _, name = element.partition(":")
        step, _, found = STEPS[kind](name, None, live, path)
        if step is None:
            continue
        if not below or "." in below:
            yield text_of(step)
        yield from _paths(below, found, step)


def writers_of(path: str, known: Owners) -> tuple[Writer, ...]:
    """Return who owns a field: itself, what it is a part of, or its parts; the nearest first."""
    if path in known:
        return known[path]
    around = max((each for each in known if _is_within(path, each)), key=len, default="")
    if around:
        return known[around]
    return tuple(writer for each, found in known.items() if _is_within(each, path) for writer in found)


def overlap(one: str, other: str) -> bool:
    """Whether two paths are of the same field, or one is a part of the other."""
    return one == other or _is_within(one, other) or _is_within(other, one)


def _is_within(path: str, outer: str) -> bool:
    return path.startswith((f"{outer}.", f"{outer}["))


def is_ours(writers: tuple[Writer, ...]) -> bool:
    """Whether we are among the owners of a field: then its value is the one that we applied."""
    return any(writer.manager == FIELD_MANAGER for writer in writers)


def last_of_others(writers: tuple[Writer, ...]) -> Writer | None:
    """Return who of the others wrote last; None if there are no others."""
    others = [writer for writer in writers if writer.manager != FIELD_MANAGER]
    return max(others, key=lambda writer: writer.time, default=None)
