"""Facts of a host: sections of one shell script (scripts/facts.sh), each with the parser of what it prints."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
        return next((rest.strip() for rest in self.all(word) if rest.strip()), "")

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


def number(text: str) -> int | None:
    """Return a whole number; None for any other text, and for one of more digits than 64 bits have."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
