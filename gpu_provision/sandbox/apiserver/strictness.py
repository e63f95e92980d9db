"""Unknown fields of a body: dropped, warned about or refused, as the parameter ``fieldValidation`` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import Call, warning
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Shape, Type, builtin
from gpu_provision.sandbox.apiserver.status import bad_request, unsupported_value

Headers = tuple[tuple[str, str], ...]
_MODES = ("", "Ignore", "Warn", "Strict")


def checked(body: Any, call: Call, custom: CustomResources) -> tuple[Object, Headers]:
    """Return a body without the fields that its kind does not know, and the warnings about them.

    Raises StatusError 400 for unknown fields if the caller asked to be strict, and for a body that is no object.
    """
    body = {} if body is None else body
    if not isinstance(body, dict):
        message = f"the body is no object: a {call.info.kind} is expected"
        raise bad_request(message)
    mode = call.query.get("fieldValidation", "")
    if mode not in _MODES:
        cause = unsupported_value("fieldValidation", mode, _MODES[1:])
        message = f"{cause.field}: {cause.message}"
        raise bad_request(message)
    unknown: list[str] = []
    kept = _kept(body, call, custom, unknown)
    if not unknown or mode in ("", "Ignore"):
        return kept, ()
    texts = [f'unknown field "{path}"' for path in unknown]
    if mode == "Strict":
        kind, version = call.info.kind, call.info.version
        message = (
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {", ".join(texts)}'
        )
        raise bad_request(message)
    return kept, tuple(warning(text) for text in texts)


def _kept(body: Object, call: Call, custom: CustomResources, unknown: list[str]) -> Object:
    if call.info.custom:
        return custom.known(body, call.info, unknown)
    types = builtin(call.info.api_version, call.info.kind)
    if types is None:
        return body
    if wrong := next(_mistyped(body, types.root, call.info.kind), ""):
        kind = call.info.kind
        message = f'{kind} in version "{call.info.version}" cannot be handled as a {kind}: json: {wrong}'
        raise bad_request(message)
    result: Object = known(body, types.root, "", unknown)
    return result


_SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("string", (str,)),
    "number": ("int32", (int, float)),
    "boolean": ("bool", (bool,)),
}


def _mistyped(value: Any, kind: Type, path: str) -> Iterator[str]:
    """Yield, in the words of real API servers, which plain values are of another type than their fields."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name in kind.fields or kind.item is not None:
                yield from _mistyped(part, kind.of(name), f"{path}.{name}" if name in kind.fields else path)
    elif isinstance(value, list) and kind.item is not None:
        for part in value:
            yield from _mistyped(part, kind.item, path)
    wanted, types = _SCALARS.get(kind.scalar or "", ("", (object,)))
    if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and wanted == "int32")):
        yield f"cannot unmarshal {_json_type(value)} into Go struct field {path} of type {wanted}"


def _json_type(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def known(value: Any, kind: Type, path: str, unknown: list[str]) -> Any:
    """Return a value without the fields that its type does not name; their paths are added to ``unknown``."""
    if isinstance(value, dict) and kind.fields:
        if kind.item is None:
            unknown.extend(f"{path}{name}" for name in value if name not in kind.fields)
        return {
            name: known(part, kind.of(name), f"{path}{name}.", unknown)
            for name, part in value.items()
            if name in kind.fields or kind.item is not None
        }
    if isinstance(value, dict) and kind.item is not None and kind.shape is Shape.MAP:
        return {name: known(part, kind.item, f"{path}{name}.", unknown) for name, part in value.items()}
    if isinstance(value, list) and kind.item is not None:
        start = path.removesuffix(".")
        return [known(part, kind.item, f"{start}[{index}].", unknown) for index, part in enumerate(value)]
    return value
