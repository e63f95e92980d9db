"""Live objects with the API server's managedFields."""

from __future__ import annotations

from typing import Any

from gpu_provision.components.labels import INVENTORY
from gpu_provision.destroy.nodes import StackIdentity
from gpu_provision.model.cluster import Manifest

OURS = "gpu-provision"


def stack(**fields: Any) -> StackIdentity:
    given: dict[str, Any] = {"name": "prod", "declared": {}, "brings_nfd": False, "is_only_stack": True}
    return StackIdentity(**{**given, **fields})


def entry(manager: str, *paths: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for path in paths:
        below = fields
        for name in path:
            below = below.setdefault(f"f:{name}", {})
    return {"manager": manager, "operation": "Update", "fieldsV1": fields}


def node(case: dict[str, Any]) -> Manifest:
    mark = case.get("mark", "prod")
    notes, own = case.get("annotations", {}), case.get("labels", {}) | ({INVENTORY: mark} if mark else {})
    books = [
        entry(manager, ("metadata", "annotations" if key in notes else "labels", key))
        for key, managers in case.get("writers", {}).items()
        for manager in ([managers] if isinstance(managers, str) else managers)
    ]
    spec: dict[str, Any] = {"taints": case["taints"]} if "taints" in case else {}
    if "cordoned_by" in case:
        spec["unschedulable"] = True
        books.append(entry(case["cordoned_by"], ("spec", "unschedulable")))
    metadata = {"name": "n1", "resourceVersion": "7", "labels": own, "annotations": notes, "managedFields": books}
    return {"metadata": metadata, "spec": spec}
