"""The stack's runs on record: one ConfigMap, a key per run, so that two requests are all that a run costs."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.components import labels
from gpu_provision.kube import lock
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lease import holder_is_dead
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.history import History
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.history import history_of

_MANAGER = "gpu-provision-history-"

Texts = Mapping[str, str]
"""Name of a record -> its text."""


def history_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the records of runs. It is no member of the stack, so nothing prunes it."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-history")


def read(cluster: Cluster, inventory: Inventory) -> History:
    """Return the stack's runs: two requests."""
    texts = (cluster.get(history_ref(inventory)) or {}).get("data") or {}
    held = lock.read_lock(cluster, inventory).lock
    return history_of(texts, held.holder if held and not holder_is_dead(held.holder) else "")


def write(
    cluster: Cluster, inventory: Inventory, changes: Mapping[str, str | None], *, is_first: bool = False
) -> Texts:
    """Write records, remove those that are None, and return all that there are then: one request.

    Args:
        is_first: Whether there is probably no object yet.
    """
    ref = history_ref(inventory)
    if is_first:
        return _created(cluster, ref, inventory, changes)
    try:
        return cluster.merge(ref, {"data": dict(changes)}).get("data") or {}
    except NotFoundError:
        return _created(cluster, ref, inventory, changes)


def _created(cluster: Cluster, ref: ObjectRef, inventory: Inventory, changes: Mapping[str, str | None]) -> Texts:
    """Apply under a manager of this run's own: should the object exist after all, its other records stay."""
    texts = {name: text for name, text in changes.items() if text is not None}
    applied = cluster.apply(_manifest(ref, inventory, texts), manager=f"{_MANAGER}{min(texts)}")
    return applied.object.get("data") or {}


def _manifest(ref: ObjectRef, inventory: Inventory, texts: Texts) -> Manifest:
    marks = {labels.MANAGED_BY: "gpu-provision", labels.RECORD: "history", labels.STACK: inventory.name}
    metadata = {"name": ref.name, "namespace": ref.namespace, "labels": marks}
    return {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": dict(texts)}
