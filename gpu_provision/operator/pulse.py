"""Whether a controller works: its lease is renewed while we watch. No two clocks are compared."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpu_provision.cluster.watching import Mirror
from gpu_provision.engine.resident import of_one
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.operator import codes
from gpu_provision.operator.leadership import LEASE_SECONDS, RENEW_SECONDS
from gpu_provision.operator.manifests import NAME, NAMESPACE

HOME = NAMESPACE, NAME
"""Namespace and name of the lease by which controllers agree on who leads."""

LEASE = ObjectRef("coordination.k8s.io/v1", "Lease", *HOME)
SCOPE = of_one(LEASE)

FIRST_SECONDS = LEASE_SECONDS + RENEW_SECONDS
"""How long a beat may take to come: one controller may have ended just now, and another one takes over."""

_NO_HOLDER_SECONDS = 3.0  # a controller that ends in order is followed at once


@dataclass(slots=True)
class Pulse:
    """The beats of whoever leads.

    Attributes:
        holder: Who that is; empty for nobody.
        is_felt: Whether one beat came since we watch.
    """

    holder: str = ""
    is_felt: bool = False
    _version: str = ""
    _since: float = field(default_factory=time.monotonic)

    def look(self, mirror: Mirror) -> None:
        """Take the lease as it is; the mirror follows `SCOPE`."""
        lease = next(iter(mirror.of(SCOPE).values()), None)
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
        return f"{LEASE} is held by {self.holder}, who does not renew it" if self.holder else f"nobody holds {LEASE}"


def nobody(label: str, told: str, *, is_written: bool) -> Finding:
    """Return the finding that no controller carries out what a stack declares."""
    name = label.partition("/")[2]
    later = "the resource is changed, and a controller that comes later carries it out"
    return Finding(
        code=codes.NO_CONTROLLER,
        where=label,
        what="this resource declares the stack, and no controller works that would look after it",
        evidence=told,
        consequence=later if is_written else "nothing was written",
        fix="see gpu-provision operator status and kubectl -n gpu-operator get pods; gpu-provision operator run is a "
        f"controller, too; gpu-provision operator release {name} gives the stack back to the command line",
    )
