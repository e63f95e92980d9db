"""How far a host's clock is from ours, within what a round trip lets us say."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.system import System


@dataclass(frozen=True, slots=True)
class Clock:
    """A comparison of clocks, in seconds.

    Attributes:
        skew: By how much the host's clock is ahead of ours at least; negative if it is behind; 0 if both may agree.
        round_trip: Between question and answer: the skew may be larger by that.
        compared: Whether anybody compared.
    """

    skew: float = 0.0
    round_trip: float = 0.0
    compared: bool = False


def clock_of(system: System | None, asked_at: float, answered_at: float) -> Clock:
    """Compare the host's time, cut to whole seconds, with when we asked and when we had the answer."""
    if system is None or system.time is None or not asked_at:
        return Clock()
    ahead = system.time - answered_at
    behind = system.time + 1 - asked_at
    skew = ahead if ahead > 0 else min(behind, 0.0)
    return Clock(skew, answered_at - asked_at, compared=True)
