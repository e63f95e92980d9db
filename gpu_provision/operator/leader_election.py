"""Leader election by a Lease, and whether a controller leads, as a client sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_provision.kube import leases
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import AlreadyExistsError, NotFoundError, ConflictError
from gpu_provision.kube.fence import is_dead, named_in, now
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Locked, ProvisionError
from gpu_provision.model import codes, version_skew
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.stack import lease_of
from gpu_provision.reconcile.observer import scope_of_object

LEASE_SECONDS, RENEW_SECONDS = 6, 2
FRESH_SECONDS = 2 * RENEW_SECONDS
"""For how long after a renewal of the lease runs write; then they wait for the next one."""

ARRIVAL_SECONDS = leases.RENEW_SECONDS
"""How long a write may be on its way that was let through at the last moment; as long as with a lock that expires."""

_AGAIN_SECONDS = 0.5  # until a renewal is tried again that was not answered


@dataclass(slots=True)
class Leadership:
    """The claim of one controller to lead, once; what its runs write rests on it (a `Mandate`).

    Attributes:
        identity: Names this controller.
    """

    cluster: Cluster
    ref: ObjectRef
    identity: str
    _lease: Manifest = field(default_factory=dict)
    _renewed_at: float = float("-inf")
    _due: float = float("-inf")
    _is_over: bool = False
    _predecessor: str = ""
    _heard_at: float = float("-inf")
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def name(self) -> str:
        """Of the lease."""
        return f"{self.ref.namespace}/{self.ref.name}"

    def wait(self, mirror: Mirror) -> bool:
        """Wait for news of the lease, and take it if nobody holds it; say whether it is ours now.

        Args:
            mirror: Follows the lease. A holder that it has not heard of for `LEASE_SECONDS` is gone.
        """
        live = next(iter(mirror.of(scope_of_object(self.ref)).values()), None)
        left = self._left(live)
        if left > 0:
            mirror.wait(left)
            return False
        return self._take(live)

    def _left(self, live: Manifest | None) -> float:
        """Return for how many seconds more a lease is to be respected.

        That of a process of this machine that has ended is not, nor one of ours that could not be given back.
        """
        holder = self._predecessor = named_in(live)
        if live is None or holder in {"", self.identity} or is_dead(holder):
            return 0.0
        if live["metadata"]["resourceVersion"] != self._lease.get("metadata", {}).get("resourceVersion"):
            self._lease, self._heard_at = live, now()
        return self._heard_at + LEASE_SECONDS - now()

    def _take(self, live: Manifest | None) -> bool:
        began = now()
        try:
            self._lease = self.cluster.replace(self._held(live)) if live else self.cluster.create(self._held({}))
        except (AlreadyExistsError, NotFoundError, ConflictError):
            return False  # somebody was faster
        self._note_renewal(began)
        return True

    def _note_renewal(self, began: float) -> None:
        with self._news:
            self._renewed_at, self._due = began, began + RENEW_SECONDS
            self._news.notify_all()

    def renew_in(self) -> float:
        """Return in how many seconds to renew."""
        return max(0.0, self._due - now())

    def renew(self) -> bool:
        """Renew the lease; say whether it is still ours. One that was lost once stays so."""
        if self._is_over:
            return False
        began = now()
        try:
            self._lease = self.cluster.replace(self._held(self._lease))
        except (ConflictError, NotFoundError):
            self._end()
        except ProvisionError:
            self._due = now() + _AGAIN_SECONDS
            if now() - self._renewed_at >= LEASE_SECONDS:
                self._end()
        else:
            self._note_renewal(began)
        return not self._is_over

    def give_back(self) -> None:
        """Let another one lead at once."""
        self._end()
        try:
            self._lease = self.cluster.replace({**self._held(self._lease), "spec": {}})
        except ProvisionError:
            return  # it expires

    def _end(self) -> None:
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def await_renewal(self) -> bool:
        """Return once the lease is fresh; say whether that took any waiting. Raises Locked if we lead no more."""
        has_waited = False
        with self._news:
            while not self._is_over and now() - self._renewed_at > FRESH_SECONDS:
                has_waited = True
                self._news.wait(RENEW_SECONDS)
            if self._is_over:
                raise Locked(_leads_no_more(self))
        return has_waited

    def inherited_in(self, holder: str) -> float | None:
        """Return in how many seconds all has arrived that ``holder`` wrote while it led; None if it was not before us.

        Our lease replaced the very version that was heard of then, so the last renewal was before that.
        """
        if holder != self._predecessor:
            return None
        return max(0.0, self._heard_at + FRESH_SECONDS + ARRIVAL_SECONDS - now())

    def _held(self, lease: Manifest) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        acquired = before.get("acquireTime", now) if before.get("holderIdentity") == self.identity else now
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        return {
            "apiVersion": self.ref.api_version,
            "kind": self.ref.kind,
            "metadata": self._marked(lease.get("metadata") or {}),
            "spec": {**spec, "acquireTime": acquired},
        }

    def _marked(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a lease's metadata with the version of whoever holds it."""
        annotations = {**(metadata.get("annotations") or {}), **version_skew.mark()}
        return {"name": self.ref.name, "namespace": self.ref.namespace, **metadata, "annotations": annotations}


def _leads_no_more(leadership: Leadership) -> Finding:
    return Finding(
        code="GP308",
        what="this controller leads no more, and its run writes nothing more",
        where=leadership.cluster.server,
        evidence=f"it held the lease {leadership.name} as {leadership.identity}",
        consequence="the controller that leads goes on from there",
    )


HOME = NAMESPACE, NAME
"""Namespace and name of the lease by which controllers agree on who leads, unless they are told another namespace."""

USUAL = "/".join(HOME)
"""The same, as a stack would name it."""

FIRST_SECONDS = LEASE_SECONDS + RENEW_SECONDS
"""How long a beat may take to come: one controller may have ended just now, and another one takes over."""

_NO_HOLDER_SECONDS = 3.0  # a controller that ends in order is followed at once


@dataclass(slots=True)
class LeaderMonitor:
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
        return scope_of_object(self.lease)

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


def nobody(label: str, pulse: LeaderMonitor, *, is_written: bool) -> Finding:
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
