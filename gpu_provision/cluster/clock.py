"""The clock by which rights to write expire: it goes on while a machine sleeps, as others do meanwhile."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return the seconds since some moment; of no use to another machine."""
    return time.clock_gettime(_CLOCK)
