"""Terminal colors. They never carry meaning alone: every color stands beside a sign or a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.model.progress import State

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STATE_COLORS = {
    State.PENDING: "dim",
    State.PROGRESSING: "cyan",
    State.READY: "green",
    State.FAILED: "red",
    State.BLOCKED: "yellow",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Colors text, or leaves it as it is."""

    enabled: bool = False

    def paint(self, color: str, text: str) -> str:
        """Return the text in a color: bold, dim, red, green, yellow or cyan."""
        return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if self.enabled and text else text

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return self.paint("bold", text)

    def dim(self, text: str) -> str:
        """Return the text less bright."""
        return self.paint("dim", text)

    def state(self, state: State, word: str = "") -> str:
        """Return the state's own word, or another one, in its color."""
        return self.paint(_STATE_COLORS[state], word or state.value)


PLAIN = Style()


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
