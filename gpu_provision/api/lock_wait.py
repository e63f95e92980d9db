"""The wait for the lock of another run, as ``--lock-timeout`` says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gpu_provision.model import codes
from gpu_provision.model.findings import LockedError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State

_Returned = TypeVar("_Returned")
_POLL_SECONDS = 1.0


def lock_waiter(
    inventory: Inventory, seconds: int, listen: Callable[[Event], None]
) -> Callable[[Callable[[], _Returned]], _Returned]:
    """Return a function that waits for the lock, calls a function, and retries if another run gets the lock.

    LockedError passes after so many seconds; with 0 at once.
    """

    def wait_and_call(work: Callable[[], _Returned]) -> _Returned:
        end = time.monotonic() + seconds  # of each call: the host phase may take longer
        while True:
            if time.monotonic() < end:
                _await_lock(inventory, end, listen)
            try:
                return work()
            except LockedError as error:
                another_was_faster = {finding.code for finding in error.findings} <= {codes.LOCKED, codes.PLAN_STALE}
                if time.monotonic() >= end or not another_was_faster:
                    raise

    return wait_and_call


def _await_lock(inventory: Inventory, end: float, listen: Callable[[Event], None]) -> None:
    """Wait until the lock is free, its holder is dead, or the time is over."""
    from gpu_provision.kube.lease import holder_is_dead
    from gpu_provision.kube.lock import TIMING, read_lock
    from gpu_provision.reconcile.session import Session

    cluster = Session(inventory).cluster
    while (held := read_lock(cluster, inventory).lock) and time.monotonic() < end:
        if holder_is_dead(held.holder) or (held.silent_seconds or 0) > TIMING.lease_seconds:
            return
        message = f"waiting for the lock, which {held.holder} holds"
        listen(Event(component="", node="", state=State.PROGRESSING, message=message))
        time.sleep(_POLL_SECONDS)
