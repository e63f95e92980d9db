"""Who of several controllers works: a Lease that is followed by a watch, and renewed by whoever holds it.

That two never write at once does not rest on this: each run takes the lock of its stack, and every write asks that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import AlreadyExists, NotFound, Outdated
from gpu_provision.cluster.holders import is_dead
from gpu_provision.cluster.watching import Mirror
from gpu_provision.engine.resident import of_one
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import ProvisionError

LEASE_SECONDS, RENEW_SECONDS = 6, 2
_AGAIN_SECONDS = 0.5  # until a renewal is tried again that was not answered


@dataclass(slots=True)
class Leadership:
    """The claim of one controller to lead.

    Attributes:
        identity: Names this controller.
    """

    cluster: Cluster
    ref: ObjectRef
    identity: str
    _lease: Manifest = field(default_factory=dict)
    _renewed_at: float = float("-inf")
    _due: float = float("-inf")

    def wait(self, mirror: Mirror) -> bool:
        """Wait for news of the lease, and take it if nobody holds it; say whether it is ours now.

        Args:
            mirror: Follows the lease. A holder that it has not heard of for `LEASE_SECONDS` is gone.
        """
        live = next(iter(mirror.of(of_one(self.ref)).values()), None)
        left = self._left(live)
        if left > 0:
            mirror.wait(left)
            return False
        return self._take(live)

    def _left(self, live: Manifest | None) -> float:
        """Return for how many seconds more a lease is to be respected.

        That of a process of this machine that has ended is not, nor one of ours that could not be given back.
        """
        holder = str((live or {}).get("spec", {}).get("holderIdentity") or "")
        if live is None or holder in {"", self.identity} or is_dead(holder):
            return 0.0
        if live["metadata"]["resourceVersion"] != self._lease.get("metadata", {}).get("resourceVersion"):
            self._lease, self._renewed_at = live, time.monotonic()
        return self._renewed_at + LEASE_SECONDS - time.monotonic()

    def _take(self, live: Manifest | None) -> bool:
        began = time.monotonic()
        try:
            self._lease = self.cluster.replace(self._held(live)) if live else self.cluster.create(self._held({}))
        except (AlreadyExists, NotFound, Outdated):
            return False  # somebody was faster
        self._note_renewal(began)
        return True

    def _note_renewal(self, began: float) -> None:
        self._renewed_at, self._due = began, began + RENEW_SECONDS

    def renew_in(self) -> float:
        """Return in how many seconds to renew."""
        return max(0.0, self._due - time.monotonic())

    def renew(self) -> bool:
        """Renew the lease; say whether it is still ours."""
        began = time.monotonic()
        try:
            self._lease = self.cluster.replace(self._held(self._lease))
        except (Outdated, NotFound):
            return False
        except ProvisionError:
            self._due = time.monotonic() + _AGAIN_SECONDS
            return time.monotonic() - self._renewed_at < LEASE_SECONDS
        self._note_renewal(began)
        return True

    def give_back(self) -> None:
        """Let another one lead at once."""
        try:
            self._lease = self.cluster.replace({**self._held(self._lease), "spec": {}})
        except ProvisionError:
            return  # it expires

    def _held(self, lease: Manifest) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        acquired = before.get("acquireTime", now) if before.get("holderIdentity") == self.identity else now
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        return {
            "apiVersion": self.ref.api_version,
            "kind": self.ref.kind,
            "metadata": lease.get("metadata") or {"name": self.ref.name, "namespace": self.ref.namespace},
            "spec": {**spec, "acquireTime": acquired},
        }
