"""Comparing clocks: only what a round trip cannot explain is skew."""

from __future__ import annotations

import pytest

from gpu_provision.hosts.facts.system import Clock, System, clock_of


@pytest.mark.parametrize(
    ("host", "asked", "answered", "skew"),
    [
        (1000, 1000.2, 1000.9, 0),  # the same second
        (1000, 1000.9, 1030.0, 0),  # a slow answer explains it
        (1000, 1001.5, 1002.0, -0.5),  # cut to a second, it may have been 1000.99
        (1010, 1000.0, 1001.0, 9),
        (400, 1000.0, 1001.0, -599),
    ],
)
def test_skew_is_what_is_left_at_least(host: int, asked: float, answered: float, skew: float) -> None:
    """The host's time is cut to whole seconds, and was read at some moment of the round trip."""
    clock = clock_of(System(time=host), asked, answered)
    assert clock.skew == pytest.approx(skew)
    assert clock.compared


def test_nothing_is_said_where_nobody_looked() -> None:
    """A recorded output has no round trip, and a host may not tell the time."""
    assert clock_of(System(time=1000), 0.0, 0.0) == Clock()
    assert clock_of(System(), 1.0, 2.0) == Clock()
    assert clock_of(None, 1.0, 2.0) == Clock()
