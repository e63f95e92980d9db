"""One writer per stack: a Lease in the operands' namespace, renewed while its holder lives.

A holder that died is recognized without comparing clocks: on the holder's own machine by its process id, elsewhere
by a renewal that does not come while we watch. A holder that could not renew its lease in time writes nothing more:
every write asks first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Self

from gpu_provision.kube import leases
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import AlreadyExists, NotFound, Outdated
from gpu_provision.kube.fence import (
    identity,
    inherited_in,
    is_alive_here,
    is_dead,
    mark_of,
    named_in,
    now,
)
from gpu_provision.kube.leases import Lease
from gpu_provision.kube.resources import path_of
from gpu_provision.kube.transport import open_to_all
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Locked, ProvisionError, Rejected
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder

_TRIES = 5  # to take a lock away from somebody who renews it

_TAKEN: set[tuple[str, ObjectRef, str]] = set()  # what runs of this process have or try to get: server, lease, holder
_TAKING = threading.Lock()


def free(
    cluster: Cluster,
    inventory: Inventory,
    *,
    force: bool = False,
    agreed: Callable[[LockHolder], bool] = lambda _: True,
    on_wait: Callable[[str], None],
) -> Lease:
    """Take the lock away from a holder that is gone; return it as it was, with an empty version if it still is.

    Args:
        force: Also from a holder that lives, whose run ends then.
        agreed: Asked once it is known whom this is about.

    Raises:
        Locked: The holder lives.
    """
    ref = leases.lock_ref(inventory)
    lease = cluster.get(ref)
    held = leases.holder_of(cluster, lease)
    if lease is not None and held is not None and not force:
        lease = _abandoned(cluster, ref, lease, on_wait, alive=leases.alive)
        held = leases.holder_of(cluster, lease)
    if lease is None or held is None:
        return Lease(None, "")
    if not agreed(held):
        return Lease(held, "")
    if force and not is_dead(held.holder):
        lease = _taken_over(cluster, ref, lease, held, on_wait)
    with contextlib.suppress(Outdated):
        return Lease(held, leases.version_of(cluster.replace(leases.written(ref, "", lease))))
    raise leases.alive(cluster, leases.holder_of(cluster, cluster.get(ref)) or held)


def _taken_over(
    cluster: Cluster, ref: ObjectRef, lease: Manifest, held: LockHolder, on_wait: Callable[[str], None]
) -> Manifest:
    """Take the lock from a run that lives, and keep it until that run cannot write any more: then it may be free."""
    for _ in range(_TRIES):
        with contextlib.suppress(Outdated):
            taken = cluster.replace(leases.written(ref, identity(), lease))
            on_wait("the lock is taken away; waiting until the run that had it writes nothing more")
            time.sleep(leases.LEASE_SECONDS - leases.RENEW_SECONDS)  # so long a lease is fresh for whoever renewed it
            return taken
        lease = cluster.get(ref) or lease
    raise leases.alive(cluster, leases.holder_of(cluster, lease) or held)


def _abandoned(
    cluster: Cluster,
    ref: ObjectRef,
    lease: Manifest,
    on_wait: Callable[[str], None],
    *,
    alive: Callable[[Cluster, LockHolder], Locked],
) -> Manifest | None:
    """Return a lease, as last looked at, once nobody is behind it; None if it has gone. Raises ``alive``."""
    held = leases.holder_of(cluster, lease)
    if held is None or is_dead(held.holder):
        return lease
    if is_alive_here(held.holder):
        raise alive(cluster, held)
    seen, give_up = lease["spec"].get("renewTime"), time.monotonic() + leases.LEASE_SECONDS
    while time.monotonic() < give_up:
        on_wait(f"the lock is held by {held.holder}; looking whether it is alive")
        time.sleep(leases.RENEW_SECONDS / 2)  # a living holder renews within this time, twice over
        found = cluster.get(ref)
        current = leases.holder_of(cluster, found)
        if found is None or current is None:
            return found
        if found["spec"].get("renewTime") != seen:
            raise alive(cluster, current)
        lease = found
    return lease


class WriteLock:
    """The right to write, from entering to leaving; a context manager.

    Attributes:
        lost: Why there is no right to write any more; every write of the cluster raises it.
    """

    def __init__(
        self, cluster: Cluster, inventory: Inventory, *, on_wait: Callable[[str], None], planned_at: str | None = None
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            on_wait: Told what is waited for.
            planned_at: Version of the lock when the plan was made: if somebody has had it since, that is an error.
        """
        self._cluster, self._ref, self._on_wait = cluster, leases.lock_ref(inventory), on_wait
        self._planned_at = planned_at
        self._identity = identity()
        self._lease: Manifest = {}
        self._renewed_at = 0.0
        self._news = threading.Condition()
        self._released = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="lock", daemon=True)
        self.lost: ProvisionError | None = None

    def __enter__(self) -> Self:
        """Acquire the lock and keep it renewed. Raises Locked."""
        self._claim()
        try:
            self._lease = self._acquire()
        except BaseException:
            _TAKEN.discard(self._key)
            raise
        self._renewer.start()
        self._cluster.fence = self._fence
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back; a server that is gone will see it expire."""
        self._cluster.fence = open_to_all
        self._released.set()
        before = self._cluster.retry_seconds
        self._cluster.retry_seconds = min(before, leases.RENEW_SECONDS)
        try:
            self._renewer.join(leases.RENEW_SECONDS)  # else its last renewal and our farewell could meet
            with contextlib.suppress(ProvisionError):
                self._lease = self._cluster.replace(leases.written(self._ref, "", self._lease))
        finally:
            self._cluster.retry_seconds = before
            _TAKEN.discard(self._key)

    @property
    def _key(self) -> tuple[str, ObjectRef, str]:
        return self._cluster.server, self._ref, self._identity

    def _claim(self) -> None:
        """Raise Locked if another run of this process has the lock, or is about to."""
        with _TAKING:
            is_taken = self._key in _TAKEN
            _TAKEN.add(self._key)
        if is_taken:
            raise self._told()

    def _fence(self, path: str) -> None:
        """Let a write pass while the right to it is fresh; wait for its renewal if not, and raise if that fails."""
        if path.startswith(path_of(self._ref).rpartition("/")[0]):
            return
        mandate = self._cluster.mandate
        while self._await_renewal() or (mandate and mandate.await_renewal()):
            pass  # while one is waited for the other one grows old

    def _await_renewal(self) -> bool:
        has_waited = False
        with self._news:
            while self.lost is None and now() - self._renewed_at > leases.LEASE_SECONDS - leases.RENEW_SECONDS:
                has_waited = True
                self._news.wait(leases.RENEW_SECONDS)
            if self.lost is not None:
                raise self.lost
        return has_waited

    def _acquire(self) -> Manifest:
        found = None if self._planned_at == "" else self._cluster.get(self._ref)  # "": there was none
        lease = self._await_inheritance(found)
        is_ours = self._has_left(lease) or inherited_in(self._cluster.mandate, lease) is not None
        if lease is not None and not is_ours:
            lease = _abandoned(self._cluster, self._ref, lease, self._on_wait, alive=leases.locked)
        if self._planned_at not in {None, leases.version_of(lease)}:
            raise leases.outrun(self._cluster)
        self._renewed_at = now()
        try:
            return self._create() if lease is None else self._replace(lease)
        except (AlreadyExists, Outdated, NotFound) as error:
            raise self._told() from error

    def _await_inheritance(self, lease: Manifest | None) -> Manifest | None:
        """Return the lease once nothing arrives any more of whoever holds it, if it is for us after them."""
        if not (left := inherited_in(self._cluster.mandate, lease)):
            return lease
        self._on_wait(f"the lock is taken over from {named_in(lease)} in {left:.1f} s")
        time.sleep(left)
        return self._cluster.get(self._ref)

    def _has_left(self, lease: Manifest | None) -> bool:
        """Whether an earlier run of this process left the lease behind: the server did not hear its farewell."""
        return named_in(lease) == self._identity

    def _told(self) -> Locked:
        held = leases.holder_of(self._cluster, self._cluster.get(self._ref))
        return leases.locked(self._cluster, held) if held else leases.outrun(self._cluster)

    def _create(self) -> Manifest:
        return self._cluster.create(self._held({}))

    def _replace(self, lease: Manifest) -> Manifest:
        return self._cluster.replace(self._held(lease))

    def _held(self, lease: Manifest) -> Manifest:
        return leases.written(self._ref, self._identity, lease, mark_of(self._cluster.mandate, self._identity))

    def _renew(self) -> None:
        began = self._renewed_at
        while not self._released.wait(max(0.0, began + leases.RENEW_SECONDS - now())):
            began = now()
            try:
                self._lease = self._renewed()
            except Locked as error:
                self._note(error)
                return
            except ProvisionError as error:
                if now() - self._renewed_at > leases.LEASE_SECONDS:
                    self._note(error)
            else:
                self._note_renewal(began)

    def _note(self, error: ProvisionError) -> None:
        with self._news:
            self.lost = error
            self._news.notify_all()

    def _note_renewal(self, began: float) -> None:
        with self._news:
            self._renewed_at = began
            self._news.notify_all()

    def _renewed(self) -> Manifest:
        """Renew the lease; whatever else somebody wrote to it, it is ours while it says so."""
        try:
            return self._replace(self._lease)
        except NotFound:
            return self._create()
        except Rejected as error:
            lease = self._cluster.get(self._ref)
            held = leases.holder_of(self._cluster, lease)
            if lease is None or held is None or held.holder != self._identity:
                raise leases.lost(self._cluster, held) from error
            return self._replace(lease)
