"""Whether a controller works: its lease is renewed while we watch. No two clocks are compared."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.engine.resident import of_one
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.operator import codes
from gpu_provision.operator.leadership import LEASE_SECONDS, RENEW_SECONDS
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.stack import lease_of

HOME = NAMESPACE, NAME
"""Namespace and name of the lease by which controllers agree on who leads, unless they are told another namespace."""

USUAL = "/".join(HOME)
"""The same, as a stack would name it."""

FIRST_SECONDS = LEASE_SECONDS + RENEW_SECONDS
"""How long a beat may take to come: one controller may have ended just now, and another one takes over."""

_NO_HOLDER_SECONDS = 3.0  # a controller that ends in order is followed at once


@dataclass(slots=True)
class Pulse:
    """The beats of whoever leads.

    Attributes:
        lease: By which controllers agree on that.
        holder: Who that is; empty for nobody.
        is_felt: Whether one beat came since we watch.
    """

    lease: ObjectRef
    holder: str = ""
    is_felt: bool = False
    _version: str = ""
    _since: float = field(default_factory=time.monotonic)

    @property
    def scope(self) -> Scope:
        """What a mirror is to follow."""
        return of_one(self.lease)

    def look(self, mirror: Mirror) -> None:
        """Take the lease as it is; the mirror follows `scope`."""
        lease = next(iter(mirror.of(self.scope).values()), None)
        self.holder = str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
        version = str(lease["metadata"]["resourceVersion"]) if lease else ""
        if version == self._version:
            return
        self.is_felt = self.is_felt or bool(self._version and self.holder)
        self._version, self._since = version, time.monotonic()

    def silence(self) -> float:
        """Return for how many seconds there was no beat."""
        return time.monotonic() - self._since

    def is_missing(self) -> bool:
        """Whether so much time has passed that nobody can be there."""
        return self.silence() > (FIRST_SECONDS if self.holder else _NO_HOLDER_SECONDS)

    def told(self) -> str:
        """Say what is known of the lease."""
        who = f"is held by {self.holder}, who does not renew it" if self.holder else "is held by nobody"
        return f"{self.lease} {who}"


def lease_for(stack: Manifest | None) -> ObjectRef:
    """Return the lease by which the controllers of a stack agree on who leads."""
    return ObjectRef("coordination.k8s.io/v1", "Lease", *(lease_of(stack) or USUAL).split("/", 1))


def nobody(label: str, pulse: Pulse, *, is_written: bool) -> Finding:
    """Return the finding that no controller carries out what a stack declares."""
    name = label.partition("/")[2]
    later = "the resource is changed, and a controller that comes later carries it out"
    return Finding(
        code=codes.NO_CONTROLLER,
        where=label,
        what="this resource declares the stack, and no controller works that would look after it",
        evidence=pulse.told(),
        consequence=later if is_written else "nothing was written",
        fix=f"see gpu-provision operator status and kubectl -n {pulse.lease.namespace} get pods; "
        "gpu-provision operator run is a controller, too; "
        f"gpu-provision operator release {name} gives the stack back to the command line",
    )
