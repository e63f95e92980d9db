"""Which requests are spoiled, and how: drawn from a seed."""

from __future__ import annotations

import random
import threading
from enum import Enum


class Fault(Enum):
    """What becomes of a request; the value is what the table of a run calls it."""

    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    UNAVAILABLE_FOR_SECONDS = "503 Retry-After"
    TOO_MANY = "429"
    TOO_MANY_UNTIL = "429 with a date"
    RESET_BEFORE = "reset before"
    ANSWER_LOST = "answer lost"
    DELAY = "delay"
    WATCH_ENDED = "watch ended"
    WATCH_TORN = "watch torn"
    WATCH_TORN_IN_LINE = "watch torn in a line"
    GONE_EVENT = "410 event"
    GONE = "410"


OF_WATCHES = (Fault.WATCH_ENDED, Fault.WATCH_TORN, Fault.WATCH_TORN_IN_LINE, Fault.GONE_EVENT, Fault.GONE)
OF_REQUESTS = tuple(fault for fault in Fault if fault not in OF_WATCHES)
_MOST_EVENTS = 3


class Draws:
    """Draws for each request whether it is spoiled, how, and after how many events of a watch.

    Each draw takes three numbers from the seed, whatever becomes of them: the same sequence of requests meets the same
    faults. Safe for threads.
    """

    def __init__(self, seed: int | str, rate: float) -> None:
        """Draw nothing yet; ``rate`` is the share of requests that is spoiled, from 0 to 1."""
        self.rate = rate
        self._random, self._alone = random.Random(seed), threading.Lock()  # noqa: S311 - faults, no secrets

    def draw(self, *, is_watch: bool) -> tuple[Fault | None, int]:
        """Return the fault of the next request, None for none, and the number of events that a watch still gets."""
        with self._alone:
            luck, kind, events = self._random.random(), self._random.random(), self._random.randint(0, _MOST_EVENTS)
        faults = OF_REQUESTS + OF_WATCHES if is_watch else OF_REQUESTS
        return (faults[int(kind * len(faults))] if luck < self.rate else None), events
