"""Many names in few words: ``gpu-01..gpu-08``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_SHORTEST_RUN = 3
_NUMBERED = re.compile(r"^(?P<head>.*?)(?P<digits>\d+)(?P<tail>\D*)$")


class _Numbered(NamedTuple):
    """A name in three parts; ``digits`` is its last number as written."""

    head: str
    digits: str
    tail: str


def ranges(names: Iterable[str], most: int = 8) -> str:
    """Return names as a list in which runs of consecutive numbers are ranges.

    After ``most`` parts the rest is counted: ``a, b, ... and 12 more``.
    """
    return in_order(sorted(set(names), key=natural), most)


def in_order(names: Iterable[str], most: int = 8) -> str:
    """Return names as `ranges` does, but in the order in which they are given."""
    parts = [part for run in _runs(names) for part in _written(tuple(run))]
    if len(parts) <= most:
        return ", ".join(parts)
    return f"{', '.join(parts[:most])} and {len(parts) - most} more"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which ``gpu-2`` comes before ``gpu-10``."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name))


def _runs(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the longest runs of neighbors that differ by one in their last number alone."""
    run: list[str] = []
    for name in names:
        if run and not _follows(run[-1], name):
            yield run
            run = []
        run.append(name)
    if run:
        yield run


def _follows(before: str, name: str) -> bool:
    one, two = _numbered(before), _numbered(name)
    if one is None or two is None or (one.head, one.tail) != (two.head, two.tail):
        return False
    padded = one.digits.startswith("0") or two.digits.startswith("0")
    same_form = not padded or len(one.digits) == len(two.digits)
    return same_form and int(two.digits) == int(one.digits) + 1


def _numbered(name: str) -> _Numbered | None:
    found = _NUMBERED.match(name)
    return _Numbered(found["head"], found["digits"], found["tail"]) if found else None


def _written(run: tuple[str, ...]) -> Iterator[str]:
    if len(run) < _SHORTEST_RUN:
        yield from run
    else:
        yield f"{run[0]}..{_last(run)}"


def _last(run: tuple[str, ...]) -> str:
    """Return the end of a range: its number alone where nothing follows the number."""
    last = _numbered(run[-1])
    return run[-1] if last is None or last.tail else last.digits
