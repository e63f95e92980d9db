"""JSON merge patch (RFC 7396) and JSON patch (RFC 6902): pure functions from value and patch to value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
