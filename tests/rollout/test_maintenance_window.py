"""Maintenance windows, by the wall clock of their time zone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, reset_tzpath

import pytest

from gpu_provision.model.rollout_policy import Day, MaintenanceWindow
from gpu_provision.rollout.budgets import is_open, next_opening

BERLIN = "Europe/Berlin"
NIGHT = MaintenanceWindow(days=(Day.SATURDAY,), start="22:30", minutes=240, timezone=BERLIN)


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("moment", "opened"),
    [
        ("2026-11-21T22:29:59", False),
        ("2026-11-21T22:30:00", True),
        ("2026-11-22T02:29:59", True),  # a window lasts over midnight, into a day on which none opens
        ("2026-11-22T02:30:00", False),
        ("2026-11-22T22:30:00", False),
        ("2026-03-29T03:20:00", True),  # the clock went from 2:00 to 3:00; 240 minutes are 240 minutes
    ],
)
def test_a_window_is_open_for_its_minutes_from_its_start(moment: str, *, opened: bool) -> None:
    """The start is in it, the end is not."""
    assert is_open(NIGHT, at(moment)) is opened


@pytest.mark.parametrize(
    ("moment", "opening"),
    [
        ("2026-11-21T22:29:59", "2026-11-21T22:30:00"),
        ("2026-11-21T22:30:00", "2026-11-28T22:30:00"),
        ("2026-10-24T23:00:00", "2026-10-31T22:30:00"),  # across the end of summer time
    ],
)
def test_the_next_window_is_known(moment: str, opening: str) -> None:
    """It is what a run waits for, or tells."""
    assert next_opening(NIGHT, at(moment)) == at(opening)


def test_the_time_zone_counts() -> None:
    """22:30 in Berlin is not 22:30 anywhere else."""
    assert not is_open(NIGHT, at("2026-11-22T02:00:00", "UTC"))
    assert is_open(NIGHT, at("2026-11-21T21:30:00", "UTC"))


def test_a_window_of_a_day_on_every_day_never_closes() -> None:
    """The defaults are no restriction."""
    always = MaintenanceWindow()
    assert all(is_open(always, at(f"2026-11-2{day}T{hour:02}:59:59")) for day in range(7) for hour in (0, 12, 23))


@pytest.fixture
def _without_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ["tzdata", *(name for name in sys.modules if name.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, module, None)
    ZoneInfo.clear_cache()
    reset_tzpath([])
    yield
    reset_tzpath()


@pytest.mark.usefixtures("_without_time_zones")
def test_utc_is_known_also_where_no_time_zone_is() -> None:
    """In a small image, whose controller would refuse every stack."""
    assert next_opening(MaintenanceWindow(start="12:00"), 0.0) == 12 * 3600
    with pytest.raises(ZoneInfoNotFoundError):
        is_open(NIGHT, 0.0)
