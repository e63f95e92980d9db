"""Differences between a desired object and the live one, field by field, and between two sets of manifests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.plan import Action, Change, FieldChange

FIELD_MANAGER = "gpu-provision"

Path = tuple[str, ...]
Manifests = Mapping[str, Sequence[Manifest]]
"""Component -> its manifests."""

_VERSIONS = ("resourceVersion", "generation", "managedFields")
_NOISE = (*_VERSIONS, "uid", "creationTimestamp", "selfLink")

# Lists whose items the API server identifies by keys (x-kubernetes-list-map-keys); others count by position.
# Source: list types of the core API, Kubernetes 1.36.
_BY_NAME = ("containers", "env", "ephemeralContainers", "imagePullSecrets", "initContainers", "volumes")
_LIST_KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(_BY_NAME, (("name",),)),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
    "volumeDevices": (("devicePath",),),
    "volumeMounts": (("mountPath",),),
}


def differences(desired: Manifest, live: Manifest) -> tuple[FieldChange, ...]:
    """Return every field of ``live`` that differs from ``desired``, sorted by path."""
    missing = _unequal_fields(_without_noise(desired), live, ())
    surplus = _surplus_fields(_owned_fields(live), desired, live, ())
    return _sort_by_path((*surplus, *missing))


def changes_between(before: Manifest, after: Manifest) -> tuple[FieldChange, ...]:
    """Return the differences between two complete versions of one object, without fields of the server."""
    old, new = _without_noise(before), _without_noise(after)
    gone = (FieldChange(each.path, each.new, None) for each in _unequal_fields(old, new, ()) if each.old is None)
    return _sort_by_path((*_unequal_fields(new, old, ()), *gone))


def has_sent_fields(live: Manifest, sent: Mapping[str, Any]) -> bool:
    """Whether an object has every field of a write; a field that is None is absent."""
    metadata = {key: value for key, value in sent.get("metadata", {}).items() if key not in _VERSIONS}
    return _are_empty(_unequal_fields({**sent, "metadata": metadata}, live, ()))


def has_applied_fields(live: Manifest, applied: Manifest) -> bool:
    """Whether an object is as after an apply: with every applied field, and without those that the apply removes."""
    return _are_empty(differences(applied, live))


def _are_empty(changes: Iterable[FieldChange]) -> bool:
    return all(change.old is None and not change.new for change in changes)  # API servers leave empty values out


# Follows from the rest of the template, so a difference of the digest is left out if another field differs.
_BOOKKEEPING = 'spec.template.metadata.labels."gpu-provision.io/digest"'


def _sort_by_path(changes: Sequence[FieldChange]) -> tuple[FieldChange, ...]:
    by_path = {change.path: change for change in changes}
    paths = sorted(by_path.keys() - {_BOOKKEEPING} or by_path.keys())
    return tuple(by_path[path] for path in paths)


def owned_keys(live: Manifest, *path: str) -> frozenset[str]:
    """Return the keys that this tool applied to a map of a live object, such as ``("metadata", "labels")``."""
    fields = _owned_fields(live)
    for name in path:
        fields = fields.get(f"f:{name}", {})
    return frozenset(name.removeprefix("f:") for name in fields if name.startswith("f:"))


# Written by the API server: the generation, for old clients.
_SERVER_ANNOTATION = "deprecated.daemonset.template.generation"


def _without_noise(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key not in _NOISE}
    annotations = metadata.get("annotations") or {}
    if _SERVER_ANNOTATION in annotations:
        kept = {key: value for key, value in annotations.items() if key != _SERVER_ANNOTATION}
        metadata = {**metadata, "annotations": kept}
    rest = {key: value for key, value in manifest.items() if key != "status"}
    return {**rest, "metadata": metadata}


def _unequal_fields(desired: Any, live: Any, path: Path) -> Iterator[FieldChange]:
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        for key, value in desired.items():
            if key in live:
                yield from _unequal_fields(value, live[key], (*path, _step(key)))
            else:
                yield FieldChange(text_of((*path, _step(key))), None, value)
    elif isinstance(desired, list) and isinstance(live, list):
        yield from _unequal_lists(desired, live, path)
    elif desired != live or isinstance(desired, bool) is not isinstance(live, bool):
        yield FieldChange(text_of(path), live, desired)


def _unequal_lists(desired: list[Any], live: list[Any], path: Path) -> Iterator[FieldChange]:
    keys = _keys_of(path, desired)
    if keys:
        by_key = {_identity(item, keys): item for item in live}
        for item in desired:
            step = (*path[:-1], f"{path[-1]}[{_label(item, keys)}]")
            match = by_key.get(_identity(item, keys))
            if match is None:
                yield FieldChange(text_of(step), None, item)
            else:
                yield from _unequal_fields(item, match, step)
    elif len(desired) != len(live):
        yield FieldChange(text_of(path), live, desired)
    else:
        for index, (item, match) in enumerate(zip(desired, live, strict=True)):
            yield from _unequal_fields(item, match, (*path[:-1], f"{path[-1]}[{index}]"))


def _keys_of(path: Path, items: Sequence[Any]) -> tuple[str, ...]:
    if not path or not all(isinstance(item, Mapping) for item in items):
        return ()
    candidates = _LIST_KEYS.get(path[-1], ())
    return next((keys for keys in candidates if all(keys[0] in item for item in items)), ())


def _identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)


def _label(item: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return str(item.get("name") or item[keys[0]])


def _owned_fields(live: Manifest) -> Mapping[str, Any]:
    for entry in live.get("metadata", {}).get("managedFields") or ():
        is_ours = entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        if is_ours and not entry.get("subresource"):
            return dict(entry.get("fieldsV1", {}))
    return {}


def _surplus_fields(owned: Mapping[str, Any], desired: Any, live: Any, path: Path) -> Iterator[FieldChange]:
    for element, below in owned.items():
        if element == ".":
            continue
        step, wanted, value = step_down(element, desired, live, path)
        if value is None or step is None:
            continue
        if wanted is None:
            yield FieldChange(text_of(step), value, None)
        elif below:
            yield from _surplus_fields(below, wanted, value, step)


def step_down(element: str, desired: Any, live: Any, path: Path) -> tuple[Path | None, Any, Any]:
    """Resolve an element of fieldsV1: return its path, None for a position, and the values there of two objects."""
    kind, _, name = element.partition(":")
    match kind:
        case "f":
            wanted, actual = (each.get(name) if isinstance(each, Mapping) else None for each in (desired, live))
            return (*path, _step(name)), wanted, actual
        case "k":
            keys = json.loads(name)
            item = _find_item(live, keys)
            label = _label(item, tuple(keys)) if item else ""
            return (*path[:-1], f"{path[-1]}[{label}]"), _find_item(desired, keys), item
        case "v":
            value = json.loads(name)
            wanted, actual = (value if value in (each or ()) else None for each in (desired, live))
            return path, wanted, actual
        case _:
            return None, None, None


def _find_item(items: Any, keys: Mapping[str, Any]) -> Any:
    if not isinstance(items, list):
        return None
    wanted = tuple(keys.values())
    return next((item for item in items if _identity(item, tuple(keys)) == wanted), None)


def _step(key: str) -> str:
    return f'"{key}"' if "." in key or "/" in key else key


def path_of(*keys: str) -> str:
    """Return the path of a field, such as of ``("metadata", "labels", "a.b/c")``, as `differences` has it."""
    return text_of(tuple(map(_step, keys)))


def text_of(path: Path) -> str:
    """Return a path as kubectl users write it."""
    return ".".join(path)


def diff_manifests(before: Manifests, after: Manifests) -> tuple[Change, ...]:
    """Return the changes from one set to the other: objects in the order of the new one, then deletions.

    Pods are validations, one for each content: new ones run, old ones are not deleted.
    """
    old, new = (
        {ref_of(item): (name, item) for name, items in each.items() for item in items} for each in (before, after)
    )
    result: list[Change] = []
    for ref, (component, manifest) in new.items():
        fields = changes_between(old[ref][1], manifest) if ref in old else ()
        action = Action.UPDATE if ref in old else Action.RUN if ref.kind == "Pod" else Action.CREATE
        if fields or ref not in old:
            result.append(Change(component=component, action=action, ref=ref, fields=fields, manifest=manifest))
    gone = ((ref, component) for ref, (component, _) in old.items() if ref not in new and ref.kind != "Pod")
    result += (Change(component=component, action=Action.DELETE, ref=ref) for ref, component in gone)
    return tuple(result)
