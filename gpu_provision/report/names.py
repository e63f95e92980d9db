"""Many names in few words: ``gpu-01..gpu-08``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

_SHORTEST_RUN = 3
_NUMBERED = re.compile(r"^(?P<head>.*?)(?P<number>\d+)(?P<tail>\D*)$")

_Numbered = tuple[str, int, int, str]  # text before the number, its width, the number, text after it


def ranges(names: Iterable[str], most: int = 8) -> str:
    """Return names as a list in which runs of consecutive numbers are ranges.

    After ``most`` parts the rest is counted: ``a, b, ... and 12 more``.
    """
    runs = [tuple(run) for run in _runs(sorted(set(names), key=_natural))]
    parts = [part for run in runs for part in _written(run)]
    if len(parts) <= most:
        return ", ".join(parts)
    return f"{', '.join(parts[:most])} and {len(parts) - most} more"


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which ``gpu-2`` comes before ``gpu-10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name)
    )


def _runs(names: list[str]) -> Iterator[list[str]]:
    """Yield the longest runs of neighbors that differ by one in their last number alone."""
    counted = enumerate(names)
    for _, group in groupby(counted, key=lambda item: _family(item[0], item[1])):
        yield [name for _, name in group]


def _family(position: int, name: str) -> tuple[object, ...]:
    numbered = _numbered(name)
    if numbered is None:
        return (name,)
    head, width, number, tail = numbered
    return head, width, tail, number - position


def _numbered(name: str) -> _Numbered | None:
    found = _NUMBERED.match(name)
    if found is None:
        return None
    digits = found["number"]
    width = len(digits) if digits.startswith("0") else 0
    return found["head"], width or len(digits), int(digits), found["tail"]


def _written(run: tuple[str, ...]) -> Iterator[str]:
    if len(run) < _SHORTEST_RUN:
        yield from run
    else:
        yield f"{run[0]}..{_last(run)}"


def _last(run: tuple[str, ...]) -> str:
    """Return the end of a range, short where the number is all that follows the common part."""
    numbered = _numbered(run[-1])
    return run[-1] if numbered is None or numbered[3] else str(numbered[2]).zfill(numbered[1])
