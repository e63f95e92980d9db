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


def _tokens(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        message = f"error decoding patch: {pointer!r} is no JSON pointer"
        raise bad_request(message)
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")]


def _index(items: list[Any], token: str, *, past_end: bool) -> int:
    if token == "-" and past_end:
        return len(items)
    if not token.isdigit() or int(token) > len(items) - (not past_end):
        message = f"index {token} is out of bounds"
        raise _unfit(message)
    return int(token)


def _step(value: Any, token: str) -> Any:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list):
        return value[_index(value, token, past_end=False)]
    message = f'the path names "{token}", which is missing'
    raise _unfit(message)


def _look(holder: Any, pointer: Any) -> Any:
    value = holder
    for token in _tokens(pointer):
        value = _step(value, token)
    return value


def _parent(holder: Any, pointer: Any) -> tuple[Any, str]:
    *path, last = _tokens(pointer)
    value = holder
    for token in path:
        value = _step(value, token)
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
