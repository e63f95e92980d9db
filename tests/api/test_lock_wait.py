"""The wait for the lock of another run, with a fake cluster and clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpu_provision import load
from gpu_provision.api import lock_wait
from gpu_provision.kube import lock
from gpu_provision.kube.lock import LockState
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, LockedError
from gpu_provision.model.progress import LockHolder
from gpu_provision.reconcile.session import Session

HOLDER = "ada@ci pid 7 start 1 on 0"


def held_lock(silent_seconds: float) -> LockState:
    """Return a lock that was renewed so long ago."""
    return LockState(LockHolder(holder=HOLDER, since="2026-11-21T08:00:00Z", silent_seconds=silent_seconds), "1")


HELD, SILENT, FREE = held_lock(2.0), held_lock(60.0), LockState(None, "")
Call = Callable[..., tuple[str, float, list[str]]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a function that finds the lock held; return its result, the seconds and the messages."""

    def wait_and_call(seconds: int, states: list[LockState], raised: list[str]) -> tuple[str, float, list[str]]:
        slept, messages = list[float](), list[str]()

        def work() -> str:
            if raised:
                raise LockedError(Finding(code=raised.pop(0), what="locked"))
            return "done"

        monkeypatch.setattr(Session, "cluster", None)
        monkeypatch.setattr(lock, "read_lock", lambda *_: states.pop(0) if len(states) > 1 else states[0])
        monkeypatch.setattr(lock_wait, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
        waiter = lock_wait.lock_waiter(
            load("inventories/sandbox.yaml"), seconds, lambda event: messages.append(event.message)
        )
        return waiter(work), sum(slept), messages

    return wait_and_call


@pytest.mark.parametrize(
    ("states", "taken", "waited"),
    [([HELD, HELD, FREE], [], 2), ([FREE], [codes.LOCKED, codes.PLAN_STALE], 0), ([SILENT], [], 0)],
    ids=["held", "another one was faster", "its holder renews no more"],
)
def test_a_run_begins_once_the_lock_is_free(call: Call, states: list[LockState], taken: list[str], waited: int) -> None:
    assert call(60, states, taken) == ("done", waited, [f"waiting for the lock, which {HOLDER} holds"] * waited)


@pytest.mark.parametrize(("seconds", "code"), [(0, codes.LOCKED), (5, codes.LOCKED), (5, "GP308")])
def test_the_error_passes_when_the_time_is_over(call: Call, seconds: int, code: str) -> None:
    """At once without the option; a run that has lost its lock is not begun again."""
    with pytest.raises(LockedError):
        call(seconds, [HELD if code == codes.LOCKED else FREE], [code])
