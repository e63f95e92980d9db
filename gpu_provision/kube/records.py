"""Records of a stack in its namespace: what passed on which node, so that any machine can resume, and its runs.

Each is one ConfigMap, so that a record costs a request or two, however many nodes there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from gpu_provision.components import labels
from gpu_provision.kube import lock
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lease import holder_is_dead
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.inventory import Inventory

if TYPE_CHECKING:
    from gpu_provision.model.history import History

_VALIDATIONS_MANAGER = "gpu-provision-records"
Passed = Mapping[tuple[str, str], str]
"""(component, node) -> the verdict, see `gpu_provision.planning.validation`."""


def validations_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the stack's records."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-validations")


def read_validations(cluster: Cluster, inventory: Inventory) -> dict[tuple[str, str], str]:
    """Return the validations on record; a missing or damaged record is empty: they run again."""
    found = cluster.get(validations_ref(inventory)) or {}
    return dict(validations_of(found.get("data") or {}))


def validations_of(data: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the validations that the data of a record tells of; what is damaged is left out."""
    found: dict[tuple[str, str], str] = {}
    for node, text in data.items():
        try:
            passed = msgspec.json.decode(text)
        except ValueError:
            continue
        if not isinstance(passed, dict):
            continue
        found |= {(component, node): str(digest) for component, digest in passed.items()}
    return found


def write_validations(cluster: Cluster, inventory: Inventory, passed: Passed) -> None:
    """Replace the record: one request, however many nodes."""
    cluster.apply(validations_manifest(inventory, passed), manager=_VALIDATIONS_MANAGER)


def validations_manifest(inventory: Inventory, passed: Passed) -> Manifest:
    """Return the record's manifest: a key per node, up to 85 bytes per validation."""
    by_node: dict[str, dict[str, str]] = {}
    for (component, node), digest in sorted(passed.items()):
        by_node.setdefault(node, {})[component] = digest
    data = {node: json.dumps(entry, sort_keys=True) for node, entry in by_node.items()}
    return _manifest(validations_ref(inventory), {}, data)


_HISTORY_MANAGER = "gpu-provision-history-"

Texts = Mapping[str, str]
"""Name of a record -> its text."""


def history_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the records of runs. It is no member of the stack, so nothing prunes it."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-history")


def read_history(cluster: Cluster, inventory: Inventory) -> History:
    """Return the stack's runs: two requests."""
    from gpu_provision.planning.history import history_of

    texts = (cluster.get(history_ref(inventory)) or {}).get("data") or {}
    held = lock.read_lock(cluster, inventory).lock
    return history_of(texts, held.holder if held and not holder_is_dead(held.holder) else "")


def write_history(
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
    marks = {labels.RECORD: "history", labels.STACK: inventory.name}
    applied = cluster.apply(_manifest(ref, marks, texts), manager=f"{_HISTORY_MANAGER}{min(texts)}")
    return applied.object.get("data") or {}


def _manifest(ref: ObjectRef, marks: Mapping[str, str], data: Texts) -> Manifest:
    metadata = {"name": ref.name, "namespace": ref.namespace, "labels": {labels.MANAGED_BY: "gpu-provision", **marks}}
    return {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": dict(data)}
