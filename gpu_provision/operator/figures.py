"""What is counted and measured of a controller and its stacks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class StackFigures:
    """Figures of one stack. Each is set by its keeper's thread alone.

    Attributes:
        status: The last that was reported.
        runs: Runs that have ended.
        failed: Those of them that did not end as declared.
        succeeded_at: When the stack was last as declared, in unix seconds; 0 for never.
        needs: Number of things to be done.
        seconds: From when something was to be done until the end of the run that did it, over all runs.
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0
    failed: int = 0
    succeeded_at: float = 0.0
    needs: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    def take_status(self, status: Mapping[str, Any]) -> None:
        """Note what is reported."""
        self.status = status
        if self.is_true("Ready"):
            self.succeeded_at = time.time()

    def take_needs(self, number: int, now: float) -> None:
        """Note how much is to be done, at a time of a monotonic clock."""
        if number and not self.needs:
            self._since = now
        self.needs = number

    def take_run(self, now: float, *, is_well: bool) -> None:
        """Note the end of a run."""
        self.runs += 1
        self.failed += not is_well
        self.seconds += now - self._since if self._since else 0.0
        self._since = now

    def is_true(self, condition: str) -> bool:
        """Whether a condition holds."""
        return any(each["type"] == condition and each["status"] == "True" for each in self.status.get("conditions", ()))

    def reason(self, condition: str) -> str:
        """Return the reason of a condition."""
        found = (each["reason"] for each in self.status.get("conditions", ()) if each["type"] == condition)
        return str(next(found, ""))
