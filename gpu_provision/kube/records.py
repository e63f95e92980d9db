"""Record of what passed on which node, so that any machine can resume: one ConfigMap, one request for all nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from gpu_provision.components import labels
from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.inventory import Inventory

_VALIDATIONS_MANAGER = "gpu-provision-records"
Passed = Mapping[tuple[str, str], str]
"""(component, node) -> the verdict, see `gpu_provision.planning.validation`."""


def validations_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the stack's records."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-validations")


def read_validations(cluster: KubeClient, inventory: Inventory) -> dict[tuple[str, str], str]:
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


def write_validations(cluster: KubeClient, inventory: Inventory, passed: Passed) -> None:
    """Replace the record: one request, however many nodes."""
    cluster.apply(validations_manifest(inventory, passed), manager=_VALIDATIONS_MANAGER)


def validations_manifest(inventory: Inventory, passed: Passed) -> Manifest:
    """Return the record's manifest: a key per node, up to 85 bytes per validation."""
    by_node: dict[str, dict[str, str]] = {}
    for (component, node), digest in sorted(passed.items()):
        by_node.setdefault(node, {})[component] = digest
    data = {node: json.dumps(entry, sort_keys=True) for node, entry in by_node.items()}
    ref = validations_ref(inventory)
    metadata = {"name": ref.name, "namespace": ref.namespace, "labels": {labels.MANAGED_BY: "gpu-provision"}}
    return {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": data}
