"""Leases: the one protocol behind the lock of a run and the election of a leader, and the fence that rests on both.

A Lease is renewed while its holder lives. A dead holder is recognized without comparing clocks: on its own machine by
its process id; elsewhere, a holder that does not renew its Lease during the watch is dead. A holder that could
not renew its Lease in time writes nothing more: every write asks first.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, InvalidError, LockedError, ProvisionError

if TYPE_CHECKING:
    from gpu_provision.kube.client import KubeClient

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NAME = re.compile(r"pid (?P<pid>\d+) start (?P<start>\d+) on (?P<place>\S+)$")
_ENDED = frozenset("ZX")  # proc(5): a zombie, and dead
_AGAIN_SECONDS = 0.5  # until a renewal is tried again that was not answered

ARRIVAL_SECONDS = 5.0  # how long a write may be on its way that the fence let through at the last moment


class Timing(NamedTuple):
    """How long a Lease holds without a renewal, and how often it is renewed."""

    lease_seconds: float
    renew_seconds: float

    @property
    def fresh_seconds(self) -> float:
        """For how long after a renewal its holder writes; then it waits for the next one."""
        return self.lease_seconds - self.renew_seconds


LEADER = Timing(lease_seconds=6, renew_seconds=2)


def boottime() -> float:
    """Return a time in seconds that goes on while the machine sleeps, as others do meanwhile."""
    return time.clock_gettime(_CLOCK)


def process_identity() -> str:
    """Return this process as ``user@host pid 123 start 456 on 9f86d081``.

    The last part stands for this boot of this machine and the process ids that are seen here: containers of one host
    may share its name, and none of them sees the processes of the others.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()} start {_start_time(os.getpid())} on {_process_location()}"


def _start_time(pid: int) -> str:
    """Return when a process started; empty for a process that has ended, also while its parent does not know."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in _ENDED else fields[18]
    except (OSError, IndexError):
        return ""


@cache
def _process_location() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        seen = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return "unknown"  # never taken for a process of this machine: its lease tells
    return hashlib.sha256(f"{boot} {seen}".encode()).hexdigest()[:8]


def holder_is_dead(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    return _is_alive_here(holder) is False


def holder_is_alive_here(holder: str) -> bool:
    """Whether a holder is a living process of this machine."""
    return _is_alive_here(holder) is True


def _is_alive_here(holder: str) -> bool | None:
    """Return whether a process of this machine lives; None for one of another machine. Process ids are reused."""
    found = _NAME.search(holder)
    if found is None or found["place"] != _process_location() or _process_location() == "unknown":
        return None
    return _start_time(int(found["pid"])) == found["start"]


def holder_identity(lease: Mapping[str, Any] | None) -> str:
    """Return who holds a lease; empty for a lease without a holder."""
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def lease_version(lease: Manifest | None) -> str:
    """Return the version of a lease; empty if there is none."""
    return str(lease["metadata"]["resourceVersion"]) if lease else ""


def lease_manifest(
    ref: ObjectRef, holder: str, lease: Manifest, seconds: float, annotations: Mapping[str, str]
) -> Manifest:
    """Return a lease, whose version guards the write, renewed now by its holder or, with none, given back."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    before = lease.get("spec") or {}
    acquired = before.get("acquireTime", now) if before.get("holderIdentity") == holder else now
    spec = {"holderIdentity": holder, "leaseDurationSeconds": int(seconds), "renewTime": now, "acquireTime": acquired}
    metadata = lease.get("metadata") or {"name": ref.name, "namespace": ref.namespace}
    notes = {**(metadata.get("annotations") or {}), **annotations}
    metadata = {**metadata, "annotations": notes} if notes else metadata
    return {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "spec": spec}


class HeldLease:
    """A Lease that this process holds, renewed by a thread until it is released or ``lost``: why it is held no more."""

    def __init__(
        self, cluster: KubeClient, ref: ObjectRef, timing: Timing, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Prepare; nothing is sent."""
        self._cluster, self._ref, self._timing, self._annotations = cluster, ref, timing, annotations or {}
        self.identity = process_identity()
        self.lost: ProvisionError | None = None
        self._lease: Manifest = {}
        self._renewed_at = 0.0
        self._state_changed = threading.Condition()
        self._released = threading.Event()
        self._renewer = threading.Thread(target=self._keep_renewed, name=f"lease {ref.name}", daemon=True)

    def hold(self, lease: Manifest | None) -> None:
        """Take a lease as it was last looked at, None for none, and keep it renewed.

        Raises AlreadyExistsError, ConflictError or NotFoundError if another process was faster.
        """
        began = boottime()
        self._lease = self._write(lease, self.identity)
        self._note_renewal(began)
        self._renewer.start()

    def release(self) -> None:
        """Give the lease back; if the server is gone, it expires."""
        self._released.set()
        before = self._cluster.retry_seconds
        self._cluster.retry_seconds = min(before, self._timing.renew_seconds)
        try:
            self._renewer.join(self._timing.renew_seconds)  # else its last renewal and this write could meet
            with contextlib.suppress(ProvisionError):
                self._lease = self._rewrite("")
        finally:
            self._cluster.retry_seconds = before

    def await_renewal(self) -> bool:
        """Return once the lease is fresh; say whether that took any waiting. Raises `lost`."""
        has_waited = False
        with self._state_changed:
            while self.lost is None and boottime() - self._renewed_at > self._timing.fresh_seconds:
                has_waited = True
                self._state_changed.wait(self._timing.renew_seconds)
            if self.lost is not None:
                raise self.lost
        return has_waited

    def _write(self, lease: Manifest | None, holder: str) -> Manifest:
        """Replace a lease as it was looked at, or create one."""
        write = self._cluster.replace if lease else self._cluster.create
        return write(lease_manifest(self._ref, holder, lease or {}, self._timing.lease_seconds, self._annotations))

    def _keep_renewed(self) -> None:
        due = self._renewed_at + self._timing.renew_seconds
        while self.lost is None and not self._released.wait(max(0.0, due - boottime())):
            began = boottime()
            try:
                self._lease = self._renew()
            except LockedError as error:
                self._set_lost(error)
            except ProvisionError as error:
                due = boottime() + min(_AGAIN_SECONDS, self._timing.renew_seconds)
                if boottime() - self._renewed_at > self._timing.lease_seconds:
                    self._set_lost(error)
            else:
                self._note_renewal(began)
                due = began + self._timing.renew_seconds

    def _renew(self) -> Manifest:
        try:
            return self._rewrite(self.identity)
        except NotFoundError:
            return self._write(None, self.identity)

    def _rewrite(self, holder: str) -> Manifest:
        """Renew the lease, or give it back. It is held while it names this process, whatever else is written to it."""
        try:
            return self._write(self._lease, holder)
        except NotFoundError:
            raise
        except InvalidError as error:
            lease = self._cluster.get(self._ref)
            if lease is None or holder_identity(lease) != self.identity:
                raise self._lost_error(lease) from error
            return self._write(lease, holder)

    def _lost_error(self, _lease: Manifest | None) -> LockedError:
        """Return the error for a lease that names another holder."""
        raise NotImplementedError

    def _set_lost(self, error: ProvisionError) -> None:
        with self._state_changed:
            self.lost = error
            self._state_changed.notify_all()

    def _note_renewal(self, began: float) -> None:
        with self._state_changed:
            self._renewed_at = began
            self._state_changed.notify_all()


def fence_of(*leases: HeldLease, exempt: str) -> Callable[[str], None]:
    """Return the fence of writes that rest on leases: one waits for a late renewal, and raises if a lease is lost.

    A write whose path begins with ``exempt`` passes: it renews one of them.
    """

    def fence(path: str) -> None:
        if not path.startswith(exempt):
            while any(lease.await_renewal() for lease in leases):
                pass  # while one is waited for the others grow old

    return fence


class LeaderElector(HeldLease):
    """The claim of one controller to lead, once; what its runs write rests on it."""

    def __init__(self, cluster: KubeClient, ref: ObjectRef, annotations: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is sent."""
        super().__init__(cluster, ref, LEADER, annotations)
        self._predecessor, self._heard, self._heard_at = "", "", float("-inf")

    @property
    def name(self) -> str:
        """Of the lease."""
        return f"{self._ref.namespace}/{self._ref.name}"

    def acquire(self, live: Manifest | None) -> float:
        """Take the lease, as a watch shows it, if it is free; return the seconds until the next try, 0 once it is held.

        It is free if its holder is unknown, or has ended on this machine, or was not heard of for the lease's time.
        """
        holder = self._predecessor = holder_identity(live)
        if holder not in {"", self.identity} and not holder_is_dead(holder):
            if lease_version(live) != self._heard:
                self._heard, self._heard_at = lease_version(live), boottime()
            left = self._heard_at + self._timing.lease_seconds - boottime()
            if left > 0:
                return left
        try:
            self.hold(live)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return self._timing.renew_seconds  # the watch brings who was faster
        return 0.0

    def takeover_delay(self, holder: str) -> float | None:
        """Return in how many seconds all has arrived that the leader before us wrote; None for any other holder.

        Our lease replaced the very version that was heard of last, so the last renewal was before that. A leader that
        gave its lease back may have a run that goes on, so its locks are watched.
        """
        if not holder or holder != self._predecessor:
            return None
        return max(0.0, self._heard_at + self._timing.fresh_seconds + ARRIVAL_SECONDS - boottime())

    def _lost_error(self, _lease: Manifest | None) -> LockedError:
        what = "this controller leads no more, and its run writes nothing more"
        said = f"it held the lease {self.name} as {self.identity}"
        then, where = "the controller that leads goes on from there", self._cluster.server
        return LockedError(Finding(code="GP308", what=what, where=where, evidence=said, consequence=then))
