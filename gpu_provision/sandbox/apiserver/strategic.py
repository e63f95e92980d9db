"""Strategic merge patch: like a merge patch, but lists of the core types are merged by a key, with directives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import copied
from gpu_provision.sandbox.apiserver.status import bad_request

# Field -> key of its items, as the Go types of Kubernetes 1.36 declare (patchMergeKey). Other lists are replaced.
MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Lists of plain values that are merged instead of replaced.
MERGED_SETS = ("finalizers", "podCIDRs")
_DIRECTIVE = "$patch"
_DELETE_FROM, _ORDER, _RETAIN = "$deleteFromPrimitiveList/", "$setElementOrder/", "$retainKeys"


def merge_key(field: str, items: Iterable[Any]) -> str:
    """Return the key by which the items of a field are told apart, empty if the list is replaced."""
    if field == "ports":  # of a container, or of a Service
        return "containerPort" if any(isinstance(item, dict) and "containerPort" in item for item in items) else "port"
    return MERGE_KEYS.get(field, "")


def strategic_merged(target: Any, patch: Any) -> Any:
    """Return ``target`` after a strategic merge patch. Raises StatusError 400 for a bad directive."""
    if not isinstance(patch, dict):
        return copied(patch)
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return copied({key: value for key, value in patch.items() if key != _DIRECTIVE})
    if directive not in (None, "merge"):
        message = f"unknown patch type: {directive}"
        raise bad_request(message)
    result = dict(target) if isinstance(target, dict) else {}
    if isinstance(retained := patch.get(_RETAIN), list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value)
    _delete_values(result, patch)
    _set_order(result, patch)
    return result


def _merge_field(result: Object, key: str, value: Any) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        result[key] = strategic_merged(result.get(key), value)
    elif isinstance(value, list):
        result[key] = _merged_list(key, result.get(key) or [], value)
    else:
        result[key] = value


def _merged_list(field: str, live: list[Any], patch: list[Any]) -> list[Any]:
    if field in MERGED_SETS:
        return [*live, *(value for value in patch if value not in live)]
    key = merge_key(field, [*patch, *live])
    if not key or not all(isinstance(item, dict) for item in [*live, *patch]):
        return copied(patch)
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return copied([item for item in patch if _DIRECTIVE not in item])
    return _by_key(live, patch, key)


def _by_key(live: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(live)
    for item in patch:
        if key not in item:
            message = f"map: {item} does not contain declared merge key: {key}"
            raise bad_request(message)
        index = next((place for place, own in enumerate(result) if own.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            result = [own for own in result if own.get(key) != item[key]]
        elif index is None:
            result.append(strategic_merged({}, item))
        else:
            result[index] = strategic_merged(result[index], item)
    return result


def _delete_values(result: Object, patch: Object) -> None:
    for directive, values in patch.items():
        field = directive.removeprefix(_DELETE_FROM)
        if field != directive and isinstance(result.get(field), list):
            result[field] = [value for value in result[field] if value not in values]


def _set_order(result: Object, patch: Object) -> None:
    for directive, order in patch.items():
        field = directive.removeprefix(_ORDER)
        if field == directive or not isinstance(result.get(field), list):
            continue
        key = merge_key(field, order)
        wanted = [item.get(key) if isinstance(item, dict) else item for item in order]
        result[field] = _ordered(result[field], key, wanted)


def _ordered(items: list[Any], key: str, wanted: list[Any]) -> list[Any]:
    """Put the named items into the wanted order; the others stay behind the item that they followed."""
    names = [item.get(key) if isinstance(item, dict) else item for item in items]
    named = [items[names.index(name)] for name in wanted if name in names]
    rest = [item for item, name in zip(items, names, strict=True) if name not in wanted]
    return [*named, *rest]
