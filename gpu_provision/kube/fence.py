"""What the right to write rests on: the process that holds a lock, or the lead of a controller.

Time goes on while a machine sleeps, as others do meanwhile.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gpu_provision.model.cluster import Manifest

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return the seconds since some moment; of no use to another machine."""
    return time.clock_gettime(_CLOCK)


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


MARK = "gpu-provision.io/mandate"
"""Annotation of a lock: under which mandate its holder writes, and who that is, as others may take the lock later."""


class Mandate(Protocol):
    """A right that ends by itself unless it is renewed, and that passes from one process to another."""

    @property
    def name(self) -> str:
        """The same for all that pass it to each other."""

    def await_renewal(self) -> bool:
        """Return once it is fresh; say whether that took any waiting. Raises Locked if it is gone."""

    def inherited_in(self, holder: str) -> float | None:
        """Return in how many seconds nothing that ``holder`` has sent under it can arrive any more.

        None if that is not known: it was not the one before us, or has given the mandate back.
        """


def mark_of(mandate: Mandate | None, holder: str) -> dict[str, str]:
    """Return the annotation of a lock that is taken under a mandate."""
    return {MARK: f"{mandate.name} {holder}"} if mandate else {}


def inherited_in(mandate: Mandate | None, lock: Manifest | None) -> float | None:
    """Return in how many seconds a lock may be taken from its holder, who had our mandate before us; None if not so."""
    holder = named_in(lock)
    if mandate is None or lock is None or not holder:
        return None
    is_under_it = (lock["metadata"].get("annotations") or {}).get(MARK) == mark_of(mandate, holder)[MARK]
    return mandate.inherited_in(holder) if is_under_it else None
