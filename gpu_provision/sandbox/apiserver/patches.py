"""JSON merge patch, JSON patch and strategic merge patch: pure functions from value and patch to a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import copied
from gpu_provision.sandbox.apiserver.status import Cause, StatusError, bad_request


def merged(target: Any, patch: Any) -> Any:
    """Return ``target`` after a merge patch; None removes a key. Shares what it does not change."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def json_patched(target: Any, operations: Any) -> Any:
    """Return ``target`` after a JSON patch. Raises StatusError 400 for a bad patch, 422 for one that does not fit."""
    if not isinstance(operations, list):
        message = "error decoding patch: a JSON patch is a list of operations"
        raise bad_request(message)
    holder = {"": copied(target)}
    for operation in operations:
        _run(holder, operation)
    return holder[""]


def _unfit(message: str) -> StatusError:
    text = f"the server rejected our request due to an error in our request: {message}"
    cause = Cause("FieldValueInvalid", message)
    return StatusError(422, "Invalid", text, details={"causes": [cause._asdict()]})


def _parts(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        message = f"error decoding patch: {pointer!r} is no JSON pointer"
        raise bad_request(message)
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]


def _index(items: list[Any], part: str, *, past_end: bool) -> int:
    if part == "-" and past_end:
        return len(items)
    if not part.isdigit() or int(part) > len(items) - (not past_end):
        message = f"index {part} is out of bounds"
        raise _unfit(message)
    return int(part)


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict) and part in value:
        return value[part]
    if isinstance(value, list):
        return value[_index(value, part, past_end=False)]
    message = f'the path names "{part}", which is missing'
    raise _unfit(message)


def _look(holder: Any, pointer: Any) -> Any:
    value = holder
    for part in _parts(pointer):
        value = _step(value, part)
    return value


def _parent(holder: Any, pointer: Any) -> tuple[Any, str]:
    *path, last = _parts(pointer)
    value = holder
    for part in path:
        value = _step(value, part)
    return value, last


def _add(holder: Any, pointer: Any, value: Any) -> None:
    parent, last = _parent(holder, pointer)
    if isinstance(parent, list):
        parent.insert(_index(parent, last, past_end=True), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        message = f'"{pointer}" leads into a value that is neither an object nor a list'
        raise _unfit(message)


def _remove(holder: Any, pointer: Any) -> Any:
    parent, last = _parent(holder, pointer)
    value = _step(parent, last)
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
    return value


def _replace(holder: Any, operation: dict[str, Any]) -> None:
    _remove(holder, operation["path"])
    _add(holder, operation["path"], copied(operation["value"]))


def _test(holder: Any, operation: dict[str, Any]) -> None:
    if _look(holder, operation["path"]) != operation.get("value"):
        message = f"testing path {operation['path']} value failed"
        raise _unfit(message)


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "add": lambda holder, row: _add(holder, row["path"], copied(row["value"])),
    "remove": lambda holder, row: _remove(holder, row["path"]) and None,
    "replace": _replace,
    "move": lambda holder, row: _add(holder, row["path"], _remove(holder, row["from"])),
    "copy": lambda holder, row: _add(holder, row["path"], copied(_look(holder, row["from"]))),
    "test": _test,
}


def _run(holder: dict[str, Any], operation: Any) -> None:
    name = operation.get("op") if isinstance(operation, dict) else None
    if name not in _OPERATIONS:
        message = f"error decoding patch: unknown operation {name!r}"
        raise bad_request(message)
    try:
        _OPERATIONS[name](holder, operation)
    except KeyError as error:
        message = f"error decoding patch: operation {name} lacks {error}"
        raise bad_request(message) from error


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
