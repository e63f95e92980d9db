"""Maintenance windows: whether one is open, and when the next one opens. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta

from gpu_provision.model.rollout_policy import Day, MaintenanceWindow

_DAYS = tuple(Day)


def is_open(window: MaintenanceWindow, now: float) -> bool:
    """Whether ``now``, in unix seconds, lies in a window."""
    length = timedelta(minutes=window.minutes).total_seconds()
    return any(0 <= now - opening < length for opening in _openings(window, now))


def next_opening(window: MaintenanceWindow, now: float) -> float:
    """Return when the next window opens, in unix seconds, after ``now``."""
    return min(opening for opening in _openings(window, now) if opening > now)


def _openings(window: MaintenanceWindow, now: float) -> Iterator[float]:
    """Yield the openings from the day before ``now`` to a week after it.

    The wall clock counts: where summer time skips the hour, a window opens as if it had not; where it repeats one,
    at the first.
    """
    zone = window.zone
    hour, minute = (int(part) for part in window.start.split(":"))
    today = datetime.fromtimestamp(now, UTC).astimezone(zone).date()
    for offset in range(-2, 9):
        day = today + timedelta(days=offset)
        if _DAYS[day.weekday()] in window.days:
            yield datetime.combine(day, time(hour, minute), zone).timestamp()
