"""What is drawn from a seed."""

from __future__ import annotations

from tests.faults.draws import OF_REQUESTS, Draws, Fault


def test_a_seed_gives_the_same_faults_to_the_same_requests() -> None:
    """Another seed gives others."""
    watches = [number % 5 == 0 for number in range(200)]

    def drawn(seed: int) -> list[tuple[Fault | None, int]]:
        draws = Draws(seed, 0.2)
        return [draws.draw(is_watch=is_watch) for is_watch in watches]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_rate_is_the_share_of_spoiled_requests() -> None:
    for rate, least, most in ((0, 0, 0), (0.2, 350, 450), (1, 2000, 2000)):
        draws = Draws(1, rate)
        spoiled = [draws.draw(is_watch=True)[0] for _ in range(2000)]
        assert least <= sum(fault is not None for fault in spoiled) <= most


def test_watches_meet_every_fault_and_others_those_of_requests() -> None:
    for is_watch, faults in ((True, set(Fault)), (False, set(OF_REQUESTS))):
        draws = Draws(1, 1)
        assert {draws.draw(is_watch=is_watch)[0] for _ in range(500)} == faults
