"""Who wrote a field of a live object, by the API server's own books, ``metadata.managedFields``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.compare import FIELD_MANAGER

OURS = frozenset({FIELD_MANAGER, f"{FIELD_MANAGER}-records"})
"""Field managers of this tool."""

# Where the server puts what it no longer tells apart: the eleventh writer of an object pushes the first one there.
_UNKNOWN = frozenset({"ancient-changes"})

# Programs that write to every object of a kind, whoever made it.
_SYSTEM = frozenset(
    {
        "cluster-policy-controller",
        "kube-apiserver",
        "kube-controller-manager",
        "openshift-controller-manager",
    }
)


def hands(item: Manifest, *path: str) -> frozenset[str]:
    """Return the field managers of one field, such as ``("metadata", "labels", "app")``; none if nobody knows."""
    found = (entry["manager"] for entry in _entries(item) if _has(entry.get("fieldsV1") or {}, path))
    return frozenset(found) - _UNKNOWN


def makers(item: Manifest) -> frozenset[str]:
    """Return everybody else who has written to an object that we apply: it was there before us, or is theirs, too."""
    return frozenset(entry["manager"] for entry in _entries(item)) - OURS - _SYSTEM - _UNKNOWN


def labels_of_ours(item: Manifest) -> dict[str, str]:
    """Return the labels that we, and nobody else, set on an object."""
    found: Mapping[str, str] = item["metadata"].get("labels") or {}
    writers = {key: hands(item, "metadata", "labels", key) for key in found}
    return {key: value for key, value in found.items() if writers[key] and writers[key] <= OURS}


def _entries(item: Manifest) -> Iterator[Mapping[str, Any]]:
    yield from (entry for entry in item["metadata"].get("managedFields") or () if entry.get("manager"))


def _has(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True
