"""One writer per stack: a Lease in the operands' namespace, renewed while its holder lives.

A holder that died is recognized without comparing clocks: on the holder's own machine by its process id, elsewhere
by a renewal that does not come while we watch.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import AlreadyExists, NotFound
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Locked, ProvisionError, Rejected
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.observed import Lock

LEASE_SECONDS, RENEW_SECONDS = 15, 5


def lock_ref(inventory: Inventory) -> ObjectRef:
    """Return the Lease that stands for the right to write."""
    return ObjectRef("coordination.k8s.io/v1", "Lease", inventory.cluster.namespace, inventory.name)


def read(cluster: Cluster, inventory: Inventory) -> Lock | None:
    """Return who writes right now, or None."""
    return _holder(cluster.get(lock_ref(inventory)))


def _holder(lease: Manifest | None) -> Lock | None:
    spec = (lease or {}).get("spec") or {}
    holder = spec.get("holderIdentity")
    return Lock(holder=holder, since=str(spec.get("acquireTime", ""))) if holder else None


def identity() -> str:
    """Return this process as ``user@host pid 123 start 456``; the start time tells reused process ids apart."""
    return f"{_user()}@{socket.gethostname()} pid {os.getpid()} start {_started(os.getpid())}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_dead(holder: str) -> bool:
    """Whether a holder was a process of this machine that is gone."""
    process = _local_process(holder)
    return process is not None and _started(process[0]) != process[1]


def is_alive_here(holder: str) -> bool:
    """Whether a holder is a living process of this machine."""
    process = _local_process(holder)
    return process is not None and _started(process[0]) == process[1]


def _local_process(holder: str) -> tuple[int, str] | None:
    owner, _, process = holder.partition(" pid ")
    pid, _, start = process.partition(" start ")
    if owner.rpartition("@")[2] != socket.gethostname() or not pid.isdigit():
        return None
    return int(pid), start


def locked(cluster: Cluster, held: Lock) -> Locked:
    """Return the error that says who holds the lock and since when."""
    return Locked(
        Finding(
            code="GP306",
            what=f"another run is writing to {cluster.name}: {held.holder}, since {held.since}",
            where=cluster.server,
            fix="wait until it has ended and run again; a run that died gives the lock up after "
            f"{LEASE_SECONDS} s by itself",
        )
    )


class WriteLock:
    """The right to write, from `acquire` to `release`; a context manager."""

    def __init__(self, cluster: Cluster, inventory: Inventory, *, on_wait: Callable[[str], None]) -> None:
        """Prepare; nothing is sent. ``on_wait`` is told what is waited for."""
        self._cluster, self._ref, self._on_wait = cluster, lock_ref(inventory), on_wait
        self._identity = identity()
        self._lease: Manifest = {}
        self._released = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="lock", daemon=True)
        self.lost: ProvisionError | None = None

    def __enter__(self) -> Self:
        """Acquire the lock and keep it renewed. Raises Locked."""
        self._lease = self._acquire()
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back; a server that is gone will see it expire."""
        self._released.set()
        self._cluster.patience = min(self._cluster.patience, RENEW_SECONDS)
        self._renewer.join(RENEW_SECONDS)  # else its last renewal and our farewell could meet
        try:
            self._lease = self._cluster.replace(self._written("", self._lease))
        except ProvisionError:
            return

    def _acquire(self) -> Manifest:
        lease = self._cluster.get(self._ref)
        if lease is None:
            return self._create()
        held = _holder(lease)
        if held and is_alive_here(held.holder):
            raise locked(self._cluster, held)
        if held and not is_dead(held.holder):
            silent = self._wait_for_silence(lease, held)
            return self._take(silent, held) if silent else self._create()
        return self._take(lease, held)

    def _create(self) -> Manifest:
        try:
            return self._cluster.create(self._written(self._identity, {}))
        except AlreadyExists as error:
            held = _holder(self._cluster.get(self._ref))
            raise (locked(self._cluster, held) if held else error) from error

    def _take(self, lease: Manifest, held: Lock | None) -> Manifest:
        try:
            return self._cluster.replace(self._written(self._identity, lease))
        except Rejected as error:
            now = _holder(self._cluster.get(self._ref)) or held
            raise (locked(self._cluster, now) if now else error) from error

    def _wait_for_silence(self, lease: Manifest, held: Lock) -> Manifest | None:
        """Return the lease as last looked at: taking exactly that one, only one of several waiters succeeds."""
        seen, give_up = lease["spec"].get("renewTime"), time.monotonic() + LEASE_SECONDS
        while time.monotonic() < give_up:
            self._on_wait(f"the lock is held by {held.holder}; looking whether it is alive")
            time.sleep(RENEW_SECONDS / 2)  # a living holder renews within this time, twice over
            now = self._cluster.get(self._ref)
            if now is None or not _holder(now):
                return now
            if now["spec"].get("renewTime") != seen:
                raise locked(self._cluster, _holder(now) or held)
            lease = now
        return lease

    def _renew(self) -> None:
        silent_since = time.monotonic()
        while not self._released.wait(RENEW_SECONDS):
            try:
                self._lease = self._renewed()
                silent_since = time.monotonic()
            except Locked as error:
                self.lost = error
                return
            except ProvisionError as error:
                if time.monotonic() - silent_since > LEASE_SECONDS:
                    self.lost = error

    def _renewed(self) -> Manifest:
        """Renew the lease; whatever else somebody wrote to it, it is ours while it says so."""
        try:
            return self._cluster.replace(self._written(self._identity, self._lease))
        except NotFound:
            return self._create()
        except Rejected as error:
            lease = self._cluster.get(self._ref)
            held = _holder(lease)
            if lease is None or held is None or held.holder != self._identity:
                raise (locked(self._cluster, held) if held else error) from error
            return self._cluster.replace(self._written(self._identity, lease))

    def _written(self, holder: str, lease: Manifest) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec", {})
        acquired = before.get("acquireTime", now) if before.get("holderIdentity") == holder else now
        spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        return {
            "apiVersion": self._ref.api_version,
            "kind": self._ref.kind,
            "metadata": lease.get("metadata") or {"name": self._ref.name, "namespace": self._ref.namespace},
            "spec": {**spec, "acquireTime": acquired},
        }
