"""What a running sandbox leaves in its directory: a lock for as long as it lives, and a record of how to reach it."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.sandbox.paths import LOCK_FILE, READY_FILE

_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox.

    Attributes:
        directory: Where it keeps its state.
        kubeconfig: For kubectl and every other client; ``context`` is the context in it.
        pid: The process that is the sandbox.
    """

    name: str
    directory: Path
    kubeconfig: Path
    context: str
    url: str
    pid: int


def locks(file: int) -> bool:
    """Take the lock on an open file; False if somebody else has it."""
    # Not a blocking lock: under gevent that would stop every other greenlet as well.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def held(home: Path) -> bool:
    """Tell whether a process that is this sandbox lives."""
    try:
        with (home / LOCK_FILE).open("r", encoding="utf-8") as lock:
            return not locks(lock.fileno())
    except OSError:
        return False


def recorded(home: Path) -> Sandbox | None:
    """Return the sandbox as its record describes it; None if there is no such record."""
    told = record(home)
    try:
        return Sandbox(
            name=str(told["name"]),
            directory=home,
            kubeconfig=Path(str(told["kubeconfig"])),
            context=str(told["context"]),
            url=str(told["url"]),
            pid=int(str(told["pid"])),
        )
    except (KeyError, ValueError):
        return None


def record(home: Path) -> dict[str, object]:
    """Return the record that a sandbox writes once it is ready; empty if there is none."""
    try:
        told = json.loads((home / READY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def holder(home: Path) -> int | None:
    """Return the process that holds the lock; None if it has not said so yet."""
    try:
        return int((home / LOCK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
