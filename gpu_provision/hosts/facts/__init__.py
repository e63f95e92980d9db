"""Facts of a host: sections of one shell script (scripts/facts.sh), and the values that are read from their lines.

A section is a dataclass; each field says by which word its lines begin (`first`, `every` ...), or what reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from typing import Any, Self

FileLines = tuple[str, ...] | None
"""Content of a file; None for no file."""


class SectionOutput:
    """Lines of a word and a rest: the word says what the rest is."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Keep the lines in order."""
        self.lines = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]

    def all(self, word: str) -> list[str]:
        """Return the rest of every line that begins with the word."""
        return [rest for each, rest in self.lines if each == word]

    def first(self, word: str) -> str:
        """Return the rest of the first such line that has one, without blanks at its ends; empty for none."""
        return next(iter(self.names(word)), "")

    def has(self, word: str) -> bool:
        """Return whether a line begins with the word."""
        return any(each == word for each, _ in self.lines)

    def names(self, word: str) -> tuple[str, ...]:
        """Return the rests of lines that begin with the word, without blanks at their ends and empty ones."""
        return tuple(rest.strip() for rest in self.all(word) if rest.strip())

    def own_file(self) -> FileLines:
        """Return the lines of a file that gpu-provision writes; an empty file still prints the word alone."""
        lines = self.all("own")
        return tuple(line for line in lines if line.strip()) if lines else None

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the lines of several files by path, of ``file PATH`` and ``line PATH TEXT``."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.all("file"), ())
        for rest in self.all("line"):
            path, _, line = rest.partition(" ")
            found[path] = (*found.get(path, ()), line)
        return found


class Section:
    """What one section says; without output its fields say that nothing is known."""

    __slots__ = ()

    @classmethod
    def read(cls, output: SectionOutput) -> Self:
        """Read the section's lines; raises nothing: a line that cannot be read is left out."""
        return cls(**{each.name: each.metadata["read"](output) for each in fields(cls)})  # type: ignore[arg-type]


def part(read: Callable[[SectionOutput], Any], *, empty: Any = "") -> Any:
    """Return a field that a function reads, and its value where the section was not read."""
    if isinstance(empty, dict):
        return field(default_factory=dict, metadata={"read": read})
    return field(default=empty, metadata={"read": read})


def first(word: str) -> Any:
    """Return a text field: the rest of the first line with the word."""
    return part(lambda output: output.first(word))


def every(word: str) -> Any:
    """Return a field of the rests of all lines with the word."""
    return part(lambda output: tuple(output.all(word)), empty=())


def names(word: str) -> Any:
    """Return a field as `every`, without blanks at the ends and empty ones."""
    return part(lambda output: output.names(word), empty=())


def flag(word: str) -> Any:
    """Return a field that says whether a line has the word."""
    return part(lambda output: output.has(word), empty=False)


def own_lines() -> Any:
    """Return a field with the lines of a file of gpu-provision's; None if there is none."""
    return part(SectionOutput.own_file, empty=None)


def lines_by_path() -> Any:
    """Return a field with the lines of several files of gpu-provision's by path."""
    return part(SectionOutput.files, empty={})


def number(text: str) -> int | None:
    """Return a whole number; None for any other text, and for one of more digits than 64 bits have."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
