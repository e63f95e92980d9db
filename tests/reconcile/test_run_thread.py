"""A run in a thread of its own, and the Ctrl-C of who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpu_provision.model.findings import Finding, Locked, ProvisionError, RunFailed, attached_findings
from gpu_provision.reconcile.run_thread import RunThread

STAYS = Finding(code="GP517", what="t4-1 stays cordoned")
GOES_ON = "the controller goes on with gpustack/main"


class _Run:
    """One that lasts until it is cancelled."""

    is_following = True

    def __init__(self, going_on: str) -> None:
        self.going_on, self._cancelled = going_on, threading.Event()

    def execute(self) -> Any:
        self._cancelled.wait(60)
        raise RunFailed(Finding(code="GP1", what="cancelled"))

    def left_behind(self) -> tuple[Finding, ...]:
        assert self._cancelled.is_set(), "only then it is what is left"
        return (STAYS,)

    def cancel(self) -> None:
        self._cancelled.set()


def _interrupted(make: Callable[..., Any]) -> BaseException:
    """Return what comes out of a run that is interrupted while a caller waits for it."""
    nothing: Any = None
    run = RunThread(nothing, nothing, nothing, 0, make=make)
    run.start()

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run.wait_for("driver", interrupt)
    assert run.is_over, "it had its time to end"
    return caught.value


@pytest.mark.parametrize(("going_on", "notes"), [(GOES_ON, [GOES_ON]), ("", [])])
def test_an_interrupt_says_what_goes_on_without_the_run(going_on: str, notes: list[str]) -> None:
    """A controller is not interrupted by a command that follows it."""
    assert getattr(_interrupted(lambda *_, **__: _Run(going_on)), "__notes__", []) == notes


def test_an_interrupt_says_what_stays_half_done() -> None:
    assert attached_findings(_interrupted(lambda *_, **__: _Run(""))) == (STAYS,)


class _Broken(_Run):
    """One that ends early."""

    def __init__(self, error: ProvisionError) -> None:
        super().__init__("")
        self._error = error

    def execute(self) -> Any:
        self.cancel()
        raise self._error


@pytest.mark.parametrize(("kind", "more"), [(RunFailed, (STAYS,)), (Locked, ())])
def test_a_run_that_ends_early_says_what_stays_half_done(kind: type[ProvisionError], more: tuple[Finding, ...]) -> None:
    """But for one whose lock was taken: the run that has it goes on."""
    nothing: Any = None
    why = Finding(code="GP1", what="the API server is gone")
    run = RunThread(nothing, nothing, nothing, 0, make=lambda *_, **__: _Broken(kind(why)))
    run.start()
    with pytest.raises(kind) as caught:
        run.join()
    assert caught.value.findings == (why, *more)
