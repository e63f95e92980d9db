"""The lock of a stack: a Lease in the operands' namespace, so that one run writes at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple, Self

from gpu_provision.kube.client import KubeClient, path_of
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.kube.lease import (
    HeldLease,
    Timing,
    fence_of,
    holder_identity,
    holder_is_alive_here,
    holder_is_dead,
    lease_manifest,
    lease_version,
    process_identity,
)
from gpu_provision.kube.transport import no_fence
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, LockedError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder

TIMING = Timing(lease_seconds=15, renew_seconds=5)

_TRIES = 5  # to take a lock away from a run that renews it

_TAKEN: set[tuple[str, ObjectRef, str]] = set()  # what runs of this process have or try to get: server, lease, holder
_TAKING = threading.Lock()


class LockState(NamedTuple):
    """The lock and the version of its object; no lock and an empty version if there is no object yet."""

    lock: LockHolder | None
    version: str


def lock_ref(inventory: Inventory) -> ObjectRef:
    """Return the Lease that stands for the right to write."""
    return ObjectRef("coordination.k8s.io/v1", "Lease", inventory.cluster.namespace, inventory.name)


def read_lock(cluster: KubeClient, inventory: Inventory) -> LockState:
    """Return who writes right now."""
    lease = cluster.get(lock_ref(inventory))
    return LockState(lock_holder(cluster, lease), lease_version(lease))


def lock_holder(cluster: KubeClient, lease: Manifest | None) -> LockHolder | None:
    """Return who holds a lease that was read just now."""
    holder = holder_identity(lease)
    if not lease or not holder:
        return None
    silent = held = _silent_seconds(cluster, lease)
    since, renewed = (str(lease["spec"].get(key) or "") for key in ("acquireTime", "renewTime"))
    if silent is not None:
        with contextlib.suppress(ValueError):
            held = silent + max(0.0, (datetime.fromisoformat(renewed) - datetime.fromisoformat(since)).total_seconds())
    return LockHolder(holder=holder, since=since, held_seconds=held, silent_seconds=silent)


def _silent_seconds(cluster: KubeClient, lease: Manifest) -> float | None:
    """Return how long ago a lease was written, both moments by the server's clock; None if that does not tell.

    Servers such as 1.20 keep the time of the first write only, and it is what a lease says that was never renewed, too.
    """
    metadata = lease["metadata"]
    times = [entry["time"] for entry in metadata.get("managedFields") or () if entry.get("time")]
    try:
        now = parsedate_to_datetime(cluster.date)
        silent = max(0.0, (now - datetime.fromisoformat(max(times))).total_seconds())
    except ValueError:
        return None
    is_of_the_first = max(times) == metadata.get("creationTimestamp")
    return None if is_of_the_first and silent > TIMING.lease_seconds else silent


def unlock(
    cluster: KubeClient,
    inventory: Inventory,
    *,
    force: bool = False,
    agreed: Callable[[LockHolder], bool] = lambda _: True,
    on_wait: Callable[[str], None],
) -> LockState:
    """Take the lock away from a dead holder, or with ``force`` from a living one, whose run ends; return it as it was.

    The version is empty if it still is. ``agreed`` is asked once the holder is known. Raises LockedError.
    """
    ref = lock_ref(inventory)
    lease = cluster.get(ref)
    if not force:
        lease = _wait_until_expired(cluster, ref, lease, on_wait, error=_holder_alive_error)
    held = lock_holder(cluster, lease)
    if lease is None or held is None:
        return LockState(None, "")
    if not agreed(held):
        return LockState(held, "")
    if force and not holder_is_dead(held.holder):
        lease = _force_acquire(cluster, ref, lease, held, on_wait)
    with contextlib.suppress(ConflictError):
        return LockState(held, lease_version(cluster.replace(lease_manifest(ref, "", lease, TIMING.lease_seconds, {}))))
    raise _holder_alive_error(cluster, lock_holder(cluster, cluster.get(ref)) or held)


def _force_acquire(
    cluster: KubeClient, ref: ObjectRef, lease: Manifest, held: LockHolder, on_wait: Callable[[str], None]
) -> Manifest:
    """Take the lock from a living run, and keep it until that run cannot write any more: then it may be free."""
    for _ in range(_TRIES):
        with contextlib.suppress(ConflictError):
            taken = cluster.replace(lease_manifest(ref, process_identity(), lease, TIMING.lease_seconds, {}))
            on_wait("the lock is taken away; waiting until the run that had it writes nothing more")
            time.sleep(TIMING.fresh_seconds)  # so long a lease is fresh for the run that renewed it
            return taken
        lease = cluster.get(ref) or lease
    raise _holder_alive_error(cluster, lock_holder(cluster, lease) or held)


def _wait_until_expired(
    cluster: KubeClient,
    ref: ObjectRef,
    lease: Manifest | None,
    on_wait: Callable[[str], None],
    *,
    error: Callable[[KubeClient, LockHolder], LockedError],
) -> Manifest | None:
    """Return a lease, as last looked at, once its holder is dead; None if the lease has gone. Raises ``error``."""
    held = lock_holder(cluster, lease)
    if lease is None or held is None or holder_is_dead(held.holder):
        return lease
    if holder_is_alive_here(held.holder):
        raise error(cluster, held)
    seen, give_up = lease["spec"].get("renewTime"), time.monotonic() + TIMING.lease_seconds
    while time.monotonic() < give_up:
        on_wait(f"the lock is held by {held.holder}; looking whether it is alive")
        time.sleep(TIMING.renew_seconds / 2)  # a living holder renews within this time, twice over
        found = cluster.get(ref)
        current = lock_holder(cluster, found)
        if found is None or current is None:
            return found
        if found["spec"].get("renewTime") != seen:
            raise error(cluster, current)
        lease = found
    return lease


class WriteLock(HeldLease):
    """The right to write to a stack while entered; a controller's run rests on its leadership, too."""

    def __init__(
        self,
        cluster: KubeClient,
        inventory: Inventory,
        *,
        on_wait: Callable[[str], None],
        planned_at: str | None = None,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            on_wait: Told what is waited for.
            planned_at: Version of the lock when the plan was made: if another run has had it since, that is an error.
        """
        super().__init__(cluster, lock_ref(inventory), TIMING)
        self._on_wait, self._planned_at = on_wait, planned_at

    def __enter__(self) -> Self:
        """Acquire the lock and keep it renewed. Raises LockedError."""
        with _TAKING:
            is_taken = self._key in _TAKEN
            _TAKEN.add(self._key)
        if is_taken:  # by another run of this process, or about to be
            raise self._locked_error()
        try:
            self._acquire()
        except BaseException:
            _TAKEN.discard(self._key)
            raise
        leases: list[HeldLease] = [each for each in (self, self._cluster.leadership) if each]
        self._cluster.fence = fence_of(*leases, exempt=path_of(self._ref).rpartition("/")[0])
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back; if the server is gone, it expires."""
        self._cluster.fence = no_fence
        try:
            self.release()
        finally:
            _TAKEN.discard(self._key)

    @property
    def _key(self) -> tuple[str, ObjectRef, str]:
        return self._cluster.server, self._ref, self.identity

    def _acquire(self) -> None:
        found = None if self._planned_at == "" else self._cluster.get(self._ref)  # "": there was none
        lease = self._await_free(found)
        if self._planned_at not in {None, lease_version(lease)}:
            raise _outdated_plan_error(self._cluster)
        try:
            self.hold(lease)
        except (AlreadyExistsError, ConflictError, NotFoundError) as error:
            raise self._locked_error() from error

    def _await_free(self, lease: Manifest | None) -> Manifest | None:
        """Return the lease, as last looked at, once its holder writes nothing more; None if there is none."""
        holder, leadership = holder_identity(lease), self._cluster.leadership
        if holder == self.identity:  # an earlier run of this process, whose farewell the server did not hear
            return lease
        left = leadership.takeover_delay(holder) if leadership else None
        if left is None:
            return _wait_until_expired(self._cluster, self._ref, lease, self._on_wait, error=locked_error)
        if left:
            self._on_wait(f"the lock is taken over from {holder} in {left:.1f} s")
            time.sleep(left)
            return self._cluster.get(self._ref)
        return lease

    def _locked_error(self) -> LockedError:
        held = lock_holder(self._cluster, self._cluster.get(self._ref))
        return locked_error(self._cluster, held) if held else _outdated_plan_error(self._cluster)

    def _lost_error(self, lease: Manifest | None) -> LockedError:
        held = lock_holder(self._cluster, lease)
        return LockedError(
            Finding(
                code="GP308",
                what="this run has lost its lock and writes nothing more",
                where=self._cluster.server,
                evidence=f"it is held by {held} now" if held else "it was taken away, and has no holder now",
                consequence="what is written so far stays; nodes that were under way stay as they are",
                fix="gpu-provision status shows the writer; then run again, which resumes",
            )
        )


def _error(cluster: KubeClient, code: str, what: str, fix: str, consequence: str = "") -> LockedError:
    return LockedError(Finding(code=code, what=what, where=cluster.server, consequence=consequence, fix=fix))


def locked_error(cluster: KubeClient, held: LockHolder) -> LockedError:
    """Return the error that says who holds the lock and since when."""
    fix = (
        f"wait until it has ended and run again; a run that died gives the lock up after {TIMING.lease_seconds} s "
        "by itself, and gpu-provision unlock takes it away"
    )
    return _error(cluster, codes.LOCKED, f"another run is writing to {cluster.name}: {held}", fix)


def _outdated_plan_error(cluster: KubeClient) -> LockedError:
    what = "another run has written since this one looked at the cluster; nothing was written"
    return _error(cluster, codes.PLAN_STALE, what, "run again, which makes a new plan")


def _holder_alive_error(cluster: KubeClient, held: LockHolder) -> LockedError:
    fix = (
        "end that run (Ctrl-C gives the lock back); gpu-provision unlock --force takes it away all the same, "
        "and the run that had it ends"
    )
    what = f"the lock is not taken away, since its holder lives: {held}"
    return _error(cluster, "GP350", what, fix, "two runs that write at once undo each other's work")
