"""One section of the script that reads a host, and the lines it has printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Part = TypeVar("Part")


class Said:
    """What one section printed: lines that begin with a word which says what the rest is."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Keep the lines in order."""
        self.lines: list[tuple[str, str]] = [_parted(line) for line in lines]

    def all(self, word: str) -> list[str]:
        """Return the rest of every line that begins with the word."""
        return [rest for each, rest in self.lines if each == word]

    def first(self, word: str) -> str:
        """Return the rest of the first such line that has one, without blanks at its ends; empty for none."""
        return next((rest.strip() for rest in self.all(word) if rest.strip()), "")

    def has(self, word: str) -> bool:
        """Return whether a line begins with the word."""
        return any(each == word for each, _ in self.lines)


def _parted(line: str) -> tuple[str, str]:
    word, _, rest = line.partition(" ")
    return word, rest


BY_ROOT = r"""by_root() { grep -qs '^Uid:[[:space:]]*0[[:space:]]' "$1/status"; }"""
"""Shell function: whether root started a process, such as ``/proc/41``. Any user can give a process any name."""


def number(text: str) -> int | None:
    """Return a whole number; None for any other text, and for one of more digits than 64 bits have."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


@dataclass(frozen=True, slots=True)
class Section(Generic[Part]):
    """A part of what is known of a host.

    Attributes:
        name: Field of the HostRecord that it fills.
        script: POSIX shell that prints lines of a word and a rest. It uses nothing but the shell, coreutils, grep,
            sed and find; other programs only where they are there, and bounded in time. It writes nothing.
        read: Makes the typed part of what was printed; of nothing, too. It never raises: a line that cannot be read is
            left out, or what it says is unknown.
    """

    name: str
    script: str
    read: Callable[[Said], Part]
