"""Colors, tables and short lists of names for terminals and logs. No meaning depends on colors alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpu_provision.model.findings import escape_control_characters
from gpu_provision.model.progress import OutsideState, State

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Random, so that foreign text cannot contain the tool's own colors.
_KEY = int.from_bytes(os.urandom(8), "big")
_MARK = re.compile(rf"\x1b\[{_KEY};(\d+)m")
_STATE_COLORS: Mapping[State | OutsideState, str] = {
    OutsideState.UNDECLARED: "dim",
    State.PENDING: "dim",
    State.PROGRESSING: "cyan",
    State.READY: "green",
    State.FAILED: "red",
    State.BLOCKED: "yellow",
    State.LEAVING: "yellow",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Colors text, or returns it unchanged.

    Attributes:
        enabled: Whether there are colors.
        columns: Width of the terminal, at which tables wrap; 0 where none is known.
    """

    enabled: bool = False
    columns: int = 0

    def paint(self, color: str, text: str) -> str:
        """Return the text in a color: bold, dim, red, green, yellow or cyan; unchanged for none."""
        if not (self.enabled and color and text):
            return text
        return f"\x1b[{_KEY};{COLORS[color]}m{text}\x1b[{_KEY};0m"

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return self.paint("bold", text)

    def state(self, state: State | OutsideState, word: str = "") -> str:
        """Return the state's word, or another word, in the state's color."""
        return self.paint(_STATE_COLORS[state], word or state.value)


PLAIN = Style()


def escape_for_terminal(text: str) -> str:
    """Return a text for printing: with the colors of `Style`, and other control characters made visible."""
    parts = _MARK.split(text)  # every second one is a color's code
    parts[::2] = map(escape_control_characters, parts[::2])
    parts[1::2] = [f"\x1b[{code}m" for code in parts[1::2]]
    return "".join(parts)


def painted_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a painted text, each with its color; that of a part without one is empty."""
    names = {code: name for name, code in COLORS.items()}
    first, *rest = _MARK.split(text)
    yield first, ""
    for code, part in zip(rest[::2], rest[1::2], strict=True):
        yield part, names.get(code, "")


def wants_color(environ: Mapping[str, str], *, terminal: bool, refused: bool = False) -> bool:
    """Return whether to use colors.

    ``--no-color`` (``refused``) decides first, then ``NO_COLOR`` (https://no-color.org), ``FORCE_COLOR``,
    and last whether the stream is a terminal that is not dumb.
    """
    if refused or environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return terminal and environ.get("TERM", "") not in {"", "dumb"}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> str:
    """Return rows as columns under headers, as wide as the terminal; empty for no rows."""
    if not rows:
        return ""
    from gpu_provision.output import screen

    return screen.table(headers, rows, style)


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def indent(text: str, spaces: int = 2) -> str:
    """Indent every line of a text."""
    return "\n".join(f"{' ' * spaces}{line}" if line else line for line in text.splitlines())


def wrap(text: str, columns: int) -> str:
    """Wrap lines that are longer than ``columns`` between words; 0 wraps nothing."""
    return "\n".join(_wrap_line(line, columns) if columns else line for line in text.split("\n"))


def _wrap_line(line: str, columns: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    done, width = "", 0
    for word in line.strip().split(" "):
        size = len(_MARK.sub("", word))
        if done and width + 1 + size > columns:
            done, width = f"{done}\n{indent}    {word}", len(indent) + 4 + size
        else:
            done = f"{done} {word}" if done else f"{indent}{word}"
            width = width + 1 + size if width else len(indent) + size
    return done


_NUMBERED = re.compile(r"^(?P<head>.*?)(?P<digits>\d+)(?P<tail>\D*)$")


def ranges(names: Iterable[str], most: int = 8) -> str:
    """Return names as a list in which three or more consecutive numbers are a range.

    After ``most`` parts the rest is counted: ``a, b, ... and 12 more``.
    """
    return ordered_ranges(sorted(set(names), key=natural_key), most)


def ordered_ranges(names: Iterable[str], most: int = 8) -> str:
    """Return names as `ranges` does, in their given order."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _is_successor(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    parts = []
    for run in runs:
        last = _NUMBERED.match(run[-1])
        end = last["digits"] if last and not last["tail"] else run[-1]
        parts += [f"{run[0]}..{end}"] if run[2:] else run
    return join_first(parts, most)


def join_first(parts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first parts, and how many more there are: ``a, b and 3 more``."""
    more = len(parts) - most
    return f"{separator.join(parts[:most])}{f' and {more} more' if more > 0 else ''}"


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which ``gpu-2`` comes before ``gpu-10``."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name))


def _is_successor(before: str, name: str) -> bool:
    """Whether two names differ only by one in their last number."""
    one, two = _NUMBERED.match(before), _NUMBERED.match(name)
    if not (one and two) or (one["head"], one["tail"]) != (two["head"], two["tail"]):
        return False
    first, second = one["digits"], two["digits"]
    same_form = len(first) == len(second) or "0" not in (first[0], second[0])
    return same_form and int(second) == int(first) + 1
