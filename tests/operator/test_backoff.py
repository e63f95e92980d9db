from __future__ import annotations

from gpu_provision.operator.backoff import Backoff


def test_nothing_has_to_wait_before_something_has_failed() -> None:
    assert Backoff().left(100.0) == 0.0


def test_each_failure_doubles_the_time_until_the_next_try_up_to_a_bound() -> None:
    backoff, waits = Backoff(), []
    for _ in range(9):
        backoff.failed(100.0)
        waits.append(backoff.left(100.0))
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]


def test_time_passes() -> None:
    backoff = Backoff()
    backoff.failed(100.0)
    assert backoff.left(103.0) == 2.0
    assert backoff.left(106.0) == 0.0


def test_a_success_forgets_all_failures() -> None:
    backoff = Backoff()
    backoff.failed(100.0)
    backoff.succeeded()
    assert backoff.left(100.0) == 0.0
    backoff.failed(100.0)
    assert backoff.left(100.0) == 5.0
