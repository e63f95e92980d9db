"""Objects that somebody edits again and again: after each repair the next one takes longer to begin. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

_FREE_REPAIRS = 3
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
_FORGET_SECONDS = 120.0
"""An object that has been left alone for so long is nobody's quarrel any more."""


@dataclass(slots=True)
class _Quarrel:
    repairs: int
    repaired_at: float


@dataclass(slots=True)
class Quarrels:
    """Counts repairs of each object. Two programs that want an object otherwise do not keep the cluster busy."""

    _known: dict[str, _Quarrel] = field(default_factory=dict)

    def look(self, lasting: Collection[str], edited: Collection[str], now: float) -> None:
        """Note what is other than declared.

        Args:
            lasting: Edits that lasted until now.
            edited: Those that are there now.
            now: Of a monotonic clock.
        """
        for name in lasting:
            if name not in edited:
                repairs = self._known[name].repairs if name in self._known else 0
                self._known[name] = _Quarrel(repairs + 1, now)
        self._known = {
            name: each
            for name, each in self._known.items()
            if name in edited or now - each.repaired_at < _FORGET_SECONDS
        }

    def patience(self, name: str) -> float:
        """Return for how many seconds to leave an edit of an object alone."""
        repairs = self._known[name].repairs - _FREE_REPAIRS if name in self._known else -1
        return min(_FIRST_SECONDS * 2**repairs, _LONGEST_SECONDS) if repairs >= 0 else 0.0
