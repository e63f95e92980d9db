"""``metadata.managedFields``: the owners of each field, and the transfer of ownership to this tool."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import Writer
from gpu_provision.planning.diff import FIELD_MANAGER, Path, step_down, text_of

Entry = Mapping[str, Any]
Owners = Mapping[str, tuple[Writer, ...]]
"""Path of a field, as in FieldChange -> its field managers."""

OWN_MANAGERS = frozenset({FIELD_MANAGER, f"{FIELD_MANAGER}-records"})
"""Field managers of this tool."""

# The server merges the oldest entries into this one when an object has more than ten.
_UNKNOWN = frozenset({"ancient-changes"})

# Programs that write to all objects of a kind.
_SYSTEM = frozenset(
    {"cluster-policy-controller", "kube-apiserver", "kube-controller-manager", "openshift-controller-manager"}
)
_IDENTITY = ("manager", "operation", "subresource")
_KUBERNETES = frozenset({"kube-apiserver", "kube-scheduler", "kubelet"})

# kubectl's imperative commands; not apply, which another declaration uses.
_HAND, _DECLARED = "kubectl-", frozenset({"kubectl-client-side-apply", "kubectl-last-applied"})


def manual_editors(live: Manifest) -> frozenset[str]:
    """Return the field managers of kubectl's imperative commands (edit, patch, set, label) on an object."""
    entries = _entries(live)
    updates = {entry["manager"] for entry in entries if entry.get("operation") == "Update"}
    applies = {entry["manager"] for entry in entries if entry.get("operation") == "Apply"}
    return frozenset(name for name in updates - applies - _DECLARED if name.startswith(_HAND))


def _entries(live: Manifest) -> tuple[Entry, ...]:
    return tuple(live.get("metadata", {}).get("managedFields") or ())


def managers_of(live: Manifest, *path: str) -> frozenset[str]:
    """Return the field managers of one field, such as ``("metadata", "labels", "app")``; empty if unknown."""
    return _managers(entry for entry in _entries(live) if _has_field(entry.get("fieldsV1") or {}, path))


def other_managers(live: Manifest) -> frozenset[str]:
    """Return the other field managers of an object that this tool applies."""
    return _managers(_entries(live)) - OWN_MANAGERS - _SYSTEM


def own_labels(live: Manifest) -> dict[str, str]:
    """Return the labels that only this tool has set on an object."""
    present: Mapping[str, str] = live["metadata"].get("labels") or {}
    managers = {key: managers_of(live, "metadata", "labels", key) for key in present}
    return {key: value for key, value in present.items() if managers[key] and managers[key] <= OWN_MANAGERS}


def _managers(entries: Iterable[Entry]) -> frozenset[str]:
    return frozenset(entry.get("manager", "") for entry in entries) - _UNKNOWN - {""}


def _has_field(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True


def owners_by_path(live: Manifest) -> Owners:
    """Return the owners of each field of a live object, without writers of the status."""
    by_path: dict[str, tuple[Writer, ...]] = {}
    for entry in _entries(live):
        if entry.get("subresource"):
            continue
        writer = Writer(str(entry.get("manager", "")), str(entry.get("time", "")))
        for path in _paths(entry.get("fieldsV1") or {}, live, ()):
            by_path[path] = (*by_path.get(path, ()), writer)
    return by_path


def _paths(owned: Mapping[str, Any], live: Any, path: Path) -> Iterator[str]:
    for element, below in owned.items():
        if element == ".":
            continue
        step, _, value = step_down(element, None, live, path)
        if step is None:
            continue
        if not below or "." in below:
            yield text_of(step)
        yield from _paths(below, value, step)


def writers_of(path: str, known: Owners) -> tuple[Writer, ...]:
    """Return the owners of a field, else of its nearest parent, else of its parts."""
    around = max((each for each in known if path == each or _is_within(path, each)), key=len, default="")
    if around:
        return known[around]
    return tuple(writer for each, writers in known.items() if _is_within(each, path) for writer in writers)


def paths_overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one is inside the other."""
    return one == other or _is_within(one, other) or _is_within(other, one)


def _is_within(path: str, outer: str) -> bool:
    return path.startswith((f"{outer}.", f"{outer}["))


def is_own_field(writers: tuple[Writer, ...]) -> bool:
    """Whether this tool is among the owners of a field, so that the field has the applied value."""
    return any(writer.manager == FIELD_MANAGER for writer in writers)


def last_other_writer(writers: tuple[Writer, ...]) -> Writer | None:
    """Return the last of the other writers; None if there are no others."""
    others = (writer for writer in writers if writer.manager != FIELD_MANAGER)
    return max(others, key=lambda writer: writer.time, default=None)


def transfer_managed_fields(live: Manifest) -> list[dict[str, Any]]:
    """Return an object's ``managedFields`` with this tool as the owner of all but status and owner references.

    The next server-side apply then has no conflict, and removes what the inventory does not declare. kubectl does the
    same for the upgrade from client-side to server-side apply.

    Fields of Kubernetes itself stay, such as the tokens of a service account. So do entries of another version of the
    API, as their paths may have another meaning.
    """
    kept: list[dict[str, Any]] = []
    own: dict[str, Any] = {}
    for entry in _entries(live):
        manager = str(entry.get("manager", ""))
        is_kubernetes = manager in _KUBERNETES or manager.endswith("controller-manager")
        if entry.get("subresource") or entry.get("apiVersion") != live["apiVersion"] or is_kubernetes:
            kept.append(dict(entry))
            continue
        fields = dict(entry.get("fieldsV1") or {})
        status = fields.pop("f:status", None)
        if status is not None:  # of a server without subresources in managedFields
            kept.append({**entry, "fieldsV1": {"f:status": status}})
        metadata = {key: value for key, value in fields.get("f:metadata", {}).items() if key != "f:ownerReferences"}
        own = _union(own, {**fields, "f:metadata": metadata} if "f:metadata" in fields else fields)
    if not own:
        return kept
    applied = {"manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": live["apiVersion"]}
    return [*kept, {**applied, "fieldsType": "FieldsV1", "fieldsV1": own}]


def is_transferred(live: Manifest) -> bool:
    """Whether no other field manager has a field of an object that `transfer_managed_fields` would take."""
    before, after = (
        sorted((*(e.get(key, "") for key in _IDENTITY), json.dumps(e.get("fieldsV1"), sort_keys=True)) for e in entries)
        for entries in (_entries(live), transfer_managed_fields(live))
    )
    return before == after


def with_transferred_fields(live: Manifest) -> Manifest:
    """Return an object as it is after the transfer, to plan the apply after that."""
    return {**live, "metadata": {**live["metadata"], "managedFields": transfer_managed_fields(live)}}


def remove_owners(live: Manifest, uids: Collection[str]) -> list[dict[str, Any]]:
    """Return an object's owner references without those to ``uids``."""
    return [owner for owner in live["metadata"].get("ownerReferences") or () if owner["uid"] not in uids]


def _union(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _union(left[key], right[key]) for key in left.keys() & right.keys()}
    return {**left, **right, **both}
