"""Terminal colors. They never carry meaning alone: every color stands beside a sign or a word."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.model.progress import Outside, State
from gpu_provision.model.visible import visible

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Random, so that no text from elsewhere can hold a color of the tool's own: what it holds becomes visible.
_KEY = int.from_bytes(os.urandom(8), "big")
_MARK = re.compile(rf"\x1b\[{_KEY};(\d+)m")
_STATE_COLORS: Mapping[State | Outside, str] = {
    Outside.UNDECLARED: "dim",
    State.PENDING: "dim",
    State.PROGRESSING: "cyan",
    State.READY: "green",
    State.FAILED: "red",
    State.BLOCKED: "yellow",
    State.LEAVING: "yellow",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Colors text, or leaves it as it is."""

    enabled: bool = False

    def paint(self, color: str, text: str) -> str:
        """Return the text in a color: bold, dim, red, green, yellow or cyan."""
        return f"{_mark(_CODES[color])}{text}{_mark('0')}" if self.enabled and text else text

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return self.paint("bold", text)

    def dim(self, text: str) -> str:
        """Return the text less bright."""
        return self.paint("dim", text)

    def state(self, state: State | Outside, word: str = "") -> str:
        """Return the state's own word, or another one, in its color."""
        return self.paint(_STATE_COLORS[state], word or state.value)


PLAIN = Style()


def _mark(code: str) -> str:
    return f"\x1b[{_KEY};{code}m"


def for_terminal(text: str) -> str:
    """Return a text as it is printed: the colors of `Style` take effect, other control characters become visible."""
    parts = _MARK.split(text)  # every second one is a color's code
    parts[::2] = map(visible, parts[::2])
    parts[1::2] = [f"\x1b[{code}m" for code in parts[1::2]]
    return "".join(parts)


def width(text: str) -> int:
    """Return how many characters of a text are seen."""
    return len(visible(_MARK.sub("", text)))


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
