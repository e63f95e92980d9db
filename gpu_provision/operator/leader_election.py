"""Whether a controller leads, as a client sees it: it renews its Lease while we watch.

Controllers agree on the leader by `gpu_provision.kube.lease.LeaderElector`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.lease import LEADER, holder_identity, lease_version
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.stack import lease_of
from gpu_provision.reconcile.observer import scope_of_object

DEFAULT_LEASE = NAMESPACE, NAME
"""Namespace and name of the lease by which controllers agree on the leader, unless another namespace is configured."""

DEFAULT_LEASE_NAME = "/".join(DEFAULT_LEASE)
"""The same, as a stack would name it."""

TAKEOVER_SECONDS = LEADER.lease_seconds + LEADER.renew_seconds
"""How long a renewal may take to come: one controller may have ended just now, and another one takes over."""

_NO_HOLDER_SECONDS = 3.0  # a controller that ends in order is followed at once


@dataclass(slots=True)
class LeaderMonitor:
    """The renewals of the leader's lease.

    Attributes:
        lease: By which controllers agree on the leader.
        holder: The leader; empty for none.
        renewal_seen: Whether the lease was renewed since we watch.
    """

    lease: ObjectRef
    holder: str = ""
    renewal_seen: bool = False
    _version: str = ""
    _since: float = field(default_factory=time.monotonic)

    @property
    def scope(self) -> Scope:
        """What a mirror is to follow."""
        return scope_of_object(self.lease)

    def observe(self, mirror: Mirror) -> None:
        """Read the lease; the mirror follows `scope`."""
        lease = next(iter(mirror.of(self.scope).values()), None)
        self.holder, version = holder_identity(lease), lease_version(lease)
        if version == self._version:
            return
        self.renewal_seen = self.renewal_seen or bool(self._version and self.holder)
        self._version, self._since = version, time.monotonic()

    def is_missing(self) -> bool:
        """Whether the lease was not renewed for so long that no controller leads."""
        limit = TAKEOVER_SECONDS if self.holder else _NO_HOLDER_SECONDS
        return time.monotonic() - self._since > limit

    def describe(self) -> str:
        """Return what is known of the lease."""
        who = f"is held by {self.holder}, who does not renew it" if self.holder else "has no holder"
        return f"{self.lease} {who}"


def lease_for(stack: Manifest | None) -> ObjectRef:
    """Return the lease by which the controllers of a stack agree on who leads."""
    return ObjectRef("coordination.k8s.io/v1", "Lease", *(lease_of(stack) or DEFAULT_LEASE_NAME).split("/", 1))


def no_leader_finding(label: str, monitor: LeaderMonitor, *, is_written: bool) -> Finding:
    """Return the finding that no controller carries out what a stack declares."""
    name = label.partition("/")[2]
    later = "the resource is changed, and a controller that comes later carries it out"
    return Finding(
        code=codes.NO_CONTROLLER,
        where=label,
        what="this resource declares the stack, and no controller works that would look after it",
        evidence=monitor.describe(),
        consequence=later if is_written else "nothing was written",
        fix=f"see gpu-provision operator status and kubectl -n {monitor.lease.namespace} get pods; "
        "gpu-provision operator run is a controller, too; "
        f"gpu-provision operator release {name} gives the stack back to the command line",
    )
