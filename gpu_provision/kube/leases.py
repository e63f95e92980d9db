"""The Lease behind the lock: who holds it, for how long, and what a run says that may not have it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import NamedTuple

from gpu_provision.kube import codes
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.fence import MARK
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Locked
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder

LEASE_SECONDS, RENEW_SECONDS = 15, 5


class Lease(NamedTuple):
    """The lock and the version of its object; no lock and an empty version if there is no object yet."""

    lock: LockHolder | None
    version: str


def lock_ref(inventory: Inventory) -> ObjectRef:
    """Return the Lease that stands for the right to write."""
    return ObjectRef("coordination.k8s.io/v1", "Lease", inventory.cluster.namespace, inventory.name)


def read(cluster: Cluster, inventory: Inventory) -> Lease:
    """Return who writes right now."""
    lease = cluster.get(lock_ref(inventory))
    return Lease(holder_of(cluster, lease), version_of(lease))


def version_of(lease: Manifest | None) -> str:
    """Return the version of a lease; empty if there is none."""
    return str(lease["metadata"]["resourceVersion"]) if lease else ""


def holder_of(cluster: Cluster, lease: Manifest | None) -> LockHolder | None:
    """Return who holds a lease that was read just now."""
    spec = (lease or {}).get("spec") or {}
    holder = spec.get("holderIdentity")
    if not lease or not holder:
        return None
    silent = _silent_seconds(cluster, lease)
    since, renewed = str(spec.get("acquireTime") or ""), str(spec.get("renewTime") or "")
    held = None if silent is None else _between(since, renewed) + silent
    return LockHolder(holder=holder, since=since, held_seconds=held, silent_seconds=silent)


def _silent_seconds(cluster: Cluster, lease: Manifest) -> float | None:
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
    return None if is_of_the_first and silent > LEASE_SECONDS else silent


def _between(first: str, last: str) -> float:
    """Return the seconds between two times of one clock; 0 if either is none."""
    try:
        return max(0.0, (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds())
    except ValueError:
        return 0.0


def locked(cluster: Cluster, held: LockHolder) -> Locked:
    """Return the error that says who holds the lock and since when."""
    return Locked(
        Finding(
            code=codes.LOCKED,
            what=f"another run is writing to {cluster.name}: {held}",
            where=cluster.server,
            fix="wait until it has ended and run again; a run that died gives the lock up after "
            f"{LEASE_SECONDS} s by itself, and gpu-provision unlock takes it away",
        )
    )


def lost(cluster: Cluster, held: LockHolder | None) -> Locked:
    """Return the error of a run whose lock somebody else has, or nobody."""
    return Locked(
        Finding(
            code="GP308",
            what="this run has lost its lock and writes nothing more",
            where=cluster.server,
            evidence=f"it is held by {held} now" if held else "somebody took it away, and nobody holds it now",
            consequence="what is written so far stays; nodes that were under way stay as they are",
            fix="see with gpu-provision status who writes, then run again: that goes on from there",
        )
    )


def outrun(cluster: Cluster) -> Locked:
    """Return the error of a run whose plan was made before another run wrote."""
    return Locked(
        Finding(
            code=codes.OUTRUN,
            what="another run has written since this one looked at the cluster; nothing was written",
            where=cluster.server,
            fix="run again: that plans anew",
        )
    )


def alive(cluster: Cluster, held: LockHolder) -> Locked:
    """Return the error of whoever wants to take the lock away from a run that goes on."""
    return Locked(
        Finding(
            code="GP350",
            what=f"the lock is not taken away, since its holder lives: {held}",
            where=cluster.server,
            consequence="two runs that write at once undo each other's work",
            fix="end that run (Ctrl-C gives the lock back); gpu-provision unlock --force takes it away all the same, "
            "and the run that had it ends",
        )
    )


def written(ref: ObjectRef, holder: str, lease: Manifest, notes: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """Return the lease as it is to be: held by somebody, or by nobody if ``holder`` is empty; renewed now.

    Args:
        notes: Under which mandate that is, if under one.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    before = lease.get("spec", {})
    acquired = before.get("acquireTime", now) if before.get("holderIdentity") == holder else now
    spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
    metadata = lease.get("metadata") or {"name": ref.name, "namespace": ref.namespace}
    others = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != MARK}
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "metadata": {**metadata, "annotations": {**others, **notes}},
        "spec": {**spec, "acquireTime": acquired},
    }
