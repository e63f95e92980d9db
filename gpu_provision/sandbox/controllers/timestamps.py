"""Times as the API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


def text(moment: datetime) -> str:
    """Return RFC 3339 in whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(written: str | None) -> datetime | None:
    """Read RFC 3339, with or without fractions; None for nothing."""
    return datetime.fromisoformat(written) if written else None


def seconds_since(written: str | None, moment: datetime) -> float:
    """Return the seconds from ``written`` to ``moment``; 0 if nothing is written."""
    then = parse(written)
    return (moment - then).total_seconds() if then else 0.0
