"""Who holds a lock: a process, named so that its own machine can tell whether it lives."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_NAME = re.compile(r"pid (?P<pid>\d+) start (?P<start>\d+) on (?P<place>\S+)$")
_ENDED = frozenset("ZX")  # proc(5): a zombie, and dead


class _Process(NamedTuple):
    """A process of this machine; the start time tells reused process ids apart."""

    pid: int
    start: str


def identity() -> str:
    """Return this process as ``user@host pid 123 start 456 on 9f86d081``.

    The last part stands for this boot of this machine and the process ids that are seen here: containers of one host
    may share its name, and none of them sees the processes of the others.
    """
    return f"{_user()}@{socket.gethostname()} pid {os.getpid()} start {_started(os.getpid())} on {_place()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _started(pid: int) -> str:
    """Return when a process started; empty if there is none, or only what its parent has yet to take note of."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in _ENDED else fields[18]
    except (OSError, IndexError):
        return ""


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        seen = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return "unknown"  # never taken for a process of this machine: its lease tells
    return hashlib.sha256(f"{boot} {seen}".encode()).hexdigest()[:8]


def named_in(lease: Mapping[str, Any] | None) -> str:
    """Return who holds a lease; empty for nobody."""
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def is_dead(holder: str) -> bool:
    """Whether a holder was a process of this machine that is gone."""
    process = _local(holder)
    return process is not None and _started(process.pid) != process.start


def is_alive_here(holder: str) -> bool:
    """Whether a holder is a living process of this machine."""
    process = _local(holder)
    return process is not None and _started(process.pid) == process.start


def _local(holder: str) -> _Process | None:
    found = _NAME.search(holder)
    if found is None or found["place"] != _place() or _place() == "unknown":
        return None
    return _Process(int(found["pid"]), found["start"])
