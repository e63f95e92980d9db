"""How an object changes hands: its owner references, and its field managers.

The fields that the operator, Helm or a person wrote become ours, so that the next server-side apply meets no conflict
and removes what the inventory does not declare. This is what kubectl does when a user goes over from client-side to
server-side apply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.diff import FIELD_MANAGER

Fields = Mapping[str, Any]
_OURS = (FIELD_MANAGER, "Apply")
_KUBERNETES = frozenset({"kube-apiserver", "kube-scheduler", "kubelet"})


def without_owners(item: Manifest, uids: Collection[str]) -> list[dict[str, Any]]:
    """Return an object's owner references but for those to certain owners."""
    return [owner for owner in item["metadata"].get("ownerReferences") or () if owner["uid"] not in uids]


def handed_over(item: Manifest) -> list[dict[str, Any]]:
    """Return an object's ``managedFields`` with everything but its status, and who owns it, in our hands.

    What Kubernetes itself has written stays its own, such as the tokens of a service account. So do entries of another
    version of the API: their paths may mean something else in ours.
    """
    kept: list[dict[str, Any]] = []
    ours: dict[str, Any] = {}
    for entry in item["metadata"].get("managedFields") or ():
        if entry.get("subresource") or entry.get("apiVersion") != item["apiVersion"] or _is_kubernetes(entry):
            kept.append(dict(entry))
            continue
        fields = dict(entry.get("fieldsV1") or {})
        status = fields.pop("f:status", None)
        ours = _union(ours, _without_owner_references(fields))
        if status is not None:  # of a server that does not tell subresources apart
            kept.append({**entry, "fieldsV1": {"f:status": status}})
    if not ours:
        return kept
    manager, operation = _OURS
    mine = {"manager": manager, "operation": operation, "apiVersion": item["apiVersion"]}
    return [*kept, {**mine, "fieldsType": "FieldsV1", "fieldsV1": ours}]


def _is_kubernetes(entry: Mapping[str, Any]) -> bool:
    manager = str(entry.get("manager", ""))
    return manager in _KUBERNETES or manager.endswith("controller-manager")


def is_handed_over(item: Manifest) -> bool:
    """Whether nobody else has a field of an object that is not its status."""
    return _essence(handed_over(item)) == _essence(item["metadata"].get("managedFields") or ())


def _essence(entries: Collection[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(
        (entry["manager"], entry["operation"], entry.get("subresource", ""), repr(_sorted(entry.get("fieldsV1"))))
        for entry in entries
    )


def _sorted(fields: Any) -> Any:
    return {key: _sorted(fields[key]) for key in sorted(fields)} if isinstance(fields, Mapping) else fields


def _without_owner_references(fields: Fields) -> Fields:
    metadata = fields.get("f:metadata")
    if not isinstance(metadata, Mapping) or "f:ownerReferences" not in metadata:
        return fields
    rest = {key: value for key, value in metadata.items() if key != "f:ownerReferences"}
    return {**fields, "f:metadata": rest}


def _union(left: Fields, right: Fields) -> dict[str, Any]:
    both = {key: _union(left[key], right[key]) for key in left.keys() & right.keys()}
    return {**left, **right, **both}


def taken(item: Manifest) -> Manifest:
    """Return an object as it is once it has changed hands, for looking at what an apply then changes."""
    return {**item, "metadata": {**item["metadata"], "managedFields": handed_over(item)}}
