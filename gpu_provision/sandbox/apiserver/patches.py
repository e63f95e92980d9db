"""JSON merge patch, JSON patch and strategic merge patch: pure functions from value and patch to a value."""

from __future__ import annotations

from typing import Any

import jsonpatch
from jsonpointer import JsonPointerException

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import Cause, StatusError, bad_request
from gpu_provision.sandbox.apiserver.fieldmanager.schema import DEDUCED, FieldShape, Type
from gpu_provision.sandbox.apiserver.objects import deep_copy

_DIRECTIVE = "$patch"
_DELETE_FROM, _ORDER, _RETAIN = "$deleteFromPrimitiveList", "$setElementOrder", "$retainKeys"


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` after a merge patch; None removes a key. Shares what it does not change."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Return ``target`` after a JSON patch. Raises StatusError 400 for a bad patch, 422 for one that does not fit."""
    if not isinstance(operations, list):
        message = "error decoding patch: a JSON patch is a list of operations"
        raise bad_request(message)
    try:
        return jsonpatch.apply_patch(target, operations)
    except (jsonpatch.JsonPatchConflict, jsonpatch.JsonPatchTestFailed) as error:
        cause = Cause("FieldValueInvalid", str(error))
        text = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", text, details={"causes": [cause._asdict()]}) from error
    except (jsonpatch.JsonPatchException, JsonPointerException, TypeError) as error:
        message = f"error decoding patch: {error}"
        raise bad_request(message) from error


def strategic_merge_patch(target: Any, patch: Any, typed: Type = DEDUCED) -> Any:
    """Return ``target`` after a strategic merge patch; its type says how lists are merged.

    Raises StatusError 400 for a bad directive.
    """
    if not isinstance(patch, dict):
        return deep_copy(patch)
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return deep_copy({key: value for key, value in patch.items() if key != _DIRECTIVE})
    if directive not in (None, "merge"):
        message = f"unknown patch type: {directive}"
        raise bad_request(message)
    result = dict(target) if isinstance(target, dict) else {}
    if isinstance(retained := patch.get(_RETAIN), list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(typed.of(key), result.get(key) or [], value)
        else:
            result[key] = strategic_merge_patch(result.get(key), value, typed.of(key))
    _follow_directives(result, patch, typed)
    return result


def _merge_list(typed: Type, live: list[Any], patch: list[Any]) -> list[Any]:
    if typed.shape is FieldShape.SET:
        return [*live, *(value for value in patch if value not in live)]
    if typed.shape is not FieldShape.LIST or not all(isinstance(item, dict) for item in [*live, *patch]):
        return deep_copy(patch)
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return deep_copy([item for item in patch if _DIRECTIVE not in item])
    key, result = typed.keys[0][0], list(live)
    for item in patch:
        if key not in item:
            message = f"map: {item} does not contain declared merge key: {key}"
            raise bad_request(message)
        index = next((place for place, own in enumerate(result) if own.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            result = [own for own in result if own.get(key) != item[key]]
        elif index is None:
            result.append(strategic_merge_patch({}, item, typed.item or DEDUCED))
        else:
            result[index] = strategic_merge_patch(result[index], item, typed.item or DEDUCED)
    return result


def _follow_directives(result: Object, patch: Object, typed: Type) -> None:
    """Delete plain values and put items into the wanted order; others stay behind the named ones."""
    for directive, values in patch.items():
        kind, _, field = directive.partition("/")
        if not isinstance(items := result.get(field), list):
            continue
        if kind == _DELETE_FROM:
            result[field] = [value for value in items if value not in values]
        elif kind == _ORDER:
            keys = typed.of(field).keys
            names = [item.get(keys[0][0]) if keys and isinstance(item, dict) else item for item in items]
            wanted = [item.get(keys[0][0]) if keys and isinstance(item, dict) else item for item in values]
            named = [items[names.index(name)] for name in wanted if name in names]
            result[field] = [*named, *(item for item, name in zip(items, names, strict=True) if name not in wanted)]
