"""Whether a stack needs a run now. Pure, but for its memory of the last run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gpu_provision.operator.backoff import Backoff

SETTLE_SECONDS = 0.3
"""How long a need has to last: the effect of our own writes takes a moment to come back, and nodes join in crowds."""

EDIT_SECONDS = 1.0
"""How long an object has to be other than declared during a run: the run itself makes what became wanted meanwhile."""


@dataclass(slots=True)
class Agenda:
    """Compares what is to be done with what the last run could not do.

    Attributes:
        undone: What the last run has left.
    """

    undone: frozenset[str] = frozenset()
    _since: dict[str, float] = field(default_factory=dict)
    _told: frozenset[str] = frozenset()
    _ran_at: float = float("-inf")
    _backoff: Backoff = field(default_factory=Backoff)

    def look(self, needs: Collection[str], now: float) -> None:
        """Note what is to be done, at a time of a monotonic clock."""
        wanted = frozenset(needs)
        self.undone = wanted if now - self._ran_at < SETTLE_SECONDS else self.undone & wanted
        self._since = {need: self._since.get(need, now) for need in needs}

    def is_due(self, now: float) -> bool:
        """Whether to run: at once for what the last run did not leave undone, for the rest after a while."""
        lasting = {need for need, since in self._since.items() if now - since >= SETTLE_SECONDS}
        return bool(lasting - self.undone) or bool(lasting and self._backoff.left(now) == 0.0)

    def is_edited(self, objects: Collection[str], now: float) -> bool:
        """Whether somebody has edited objects during a run; said once of each, as a run may not get it undone."""
        self._told &= frozenset(objects)
        lasting = {each for each in objects if now - self._since.get(each, now) >= EDIT_SECONDS}
        news = lasting - self._told - self.undone
        self._told |= news
        return bool(news)

    def wait(self, now: float, *, is_running: bool) -> float:
        """Return in how many seconds to ask again although nothing has happened; infinity if nothing is to be done."""
        if is_running:
            return EDIT_SECONDS if self._since else float("inf")
        left = self._backoff.left(now)
        waits = (left if need in self.undone else since + SETTLE_SECONDS - now for need, since in self._since.items())
        return max(0.0, min(waits, default=float("inf")))

    def ran(self, needs: Collection[str], now: float, *, is_well: bool) -> None:
        """Note the end of a run, and what is still to be done."""
        self.undone, self._ran_at = frozenset(needs), now
        if is_well and not needs:
            self._backoff.succeeded()
        else:
            self._backoff.failed(now)
