"""Live objects with the API server's books."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels as keys
from gpu_provision.destroy.nodes import StackIdentity
from gpu_provision.model.cluster import Manifest

OURS = "gpu-provision"


def stack(**fields: Any) -> StackIdentity:
    """Return the stack ``prod``, alone in its cluster."""
    given: dict[str, Any] = {"name": "prod", "declared": {}, "brings_nfd": False, "is_alone": True}
    return StackIdentity(**{**given, **fields})


def entry(manager: str, *paths: tuple[str, ...]) -> dict[str, Any]:
    """Return what the books have of one manager."""
    fields: dict[str, Any] = {}
    for path in paths:
        below = fields
        for name in path:
            below = below.setdefault(f"f:{name}", {})
    return {"manager": manager, "operation": "Update", "fieldsV1": fields}


def node(  # noqa: PLR0913 - the parts of a node
    labels: dict[str, str] | None = None,
    *,
    annotations: dict[str, str] | None = None,
    hands: dict[str, str] | None = None,
    cordoned_by: str = "",
    cordoned: bool = False,
    marked: bool = True,
) -> Manifest:
    """Return a node.

    Args:
        hands: Key of a label or annotation -> who has written it; of others the writer is unknown.
        marked: Whether it carries the mark of ``prod``.
    """
    own = {**({keys.INVENTORY: "prod"} if marked else {}), **(labels or {})}
    notes = annotations or {}
    kinds = {**dict.fromkeys(notes, "annotations"), **dict.fromkeys(own, "labels")}
    books = [entry(manager, ("metadata", kinds[key], key)) for key, manager in (hands or {}).items()]
    books += [entry(cordoned_by, ("spec", "unschedulable"))] if cordoned_by else []
    metadata = {"name": "n1", "resourceVersion": "7", "labels": own, "annotations": notes, "managedFields": books}
    is_cordoned = cordoned or bool(cordoned_by)
    return {"metadata": metadata, "spec": {"unschedulable": True} if is_cordoned else {}}
