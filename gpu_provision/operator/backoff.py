"""When to try again what has failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 600.0


@dataclass(slots=True)
class Backoff:
    """Each failure doubles the time until the next try; a success forgets them."""

    _failures: int = field(default=0)
    _due: float = field(default=0.0)

    def failed(self, now: float) -> None:
        """Note a failure, at a time of a monotonic clock."""
        self._due = now + min(_FIRST_SECONDS * 2**self._failures, _LONGEST_SECONDS)
        self._failures += 1

    def succeeded(self) -> None:
        """Forget all failures."""
        self._failures, self._due = 0, 0.0

    def left(self, now: float) -> float:
        """Return the seconds until the next try."""
        return max(0.0, self._due - now)
