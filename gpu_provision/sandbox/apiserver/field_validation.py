"""Unknown and mistyped fields of a body, as the parameter ``fieldValidation`` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.errors import bad_request, unsupported_value
from gpu_provision.sandbox.apiserver.fieldmanager.schema import FieldShape, Type, builtin
from gpu_provision.sandbox.apiserver.request import Request

Headers = tuple[tuple[str, str], ...]
_MODES = ("Ignore", "Warn", "Strict")


def validate_fields(body: Any, request: Request, custom: CustomResources) -> tuple[Object, Headers]:
    """Return a body without the fields that its kind does not know, and the warnings about them.

    Raises StatusError 400 for unknown fields if the caller asked to be strict, for plain values of another type than
    their field's, and for a body that is no object.
    """
    body, info = {} if body is None else body, request.info
    if not isinstance(body, dict):
        message = f"the body is no object: a {info.kind} is expected"
        raise bad_request(message)
    mode = request.query.get("fieldValidation") or "Ignore"
    if mode not in _MODES:
        message = f"fieldValidation: {unsupported_value('fieldValidation', mode, _MODES).message}"
        raise bad_request(message)
    unknown: list[str] = []
    refusal = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: '
    if info.custom:
        known = custom.keep_known(body, info, unknown)
    elif types := builtin(info.api_version, info.kind):
        if wrong := next(_find_mistyped(body, types.root, info.kind), ""):
            message = f"{refusal}json: {wrong}"
            raise bad_request(message)
        known = _keep_known(body, types.root, "", unknown)
    else:
        known = body
    texts = [f'unknown field "{path}"' for path in unknown]
    if texts and mode == "Strict":
        message = f"{refusal}strict decoding error: {', '.join(texts)}"
        raise bad_request(message)
    return known, tuple(map(_warning_header, texts)) if mode == "Warn" else ()


def _warning_header(text: str) -> tuple[str, str]:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "Warning", f'299 - "{escaped}"'


_SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("string", (str,)),
    "number": ("int32", (int, float)),
    "boolean": ("bool", (bool,)),
}


def _find_mistyped(value: Any, kind: Type, path: str) -> Iterator[str]:
    """Yield, in the words of real API servers, which plain values are of another type than their fields."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name in kind.fields or kind.item is not None:
                yield from _find_mistyped(part, kind.of(name), f"{path}.{name}" if name in kind.fields else path)
    elif isinstance(value, list) and kind.item is not None:
        for part in value:
            yield from _find_mistyped(part, kind.item, path)
    wanted, types = _SCALARS.get(kind.scalar or "", ("", (object,)))
    if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and wanted == "int32")):
        yield f"cannot unmarshal {_json_type(value)} into Go struct field {path} of type {wanted}"


def _json_type(value: Any) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _keep_known(value: Any, kind: Type, path: str, unknown: list[str]) -> Any:
    """Return a value without the fields that its type does not name; their paths are added to ``unknown``."""
    if isinstance(value, dict) and kind.fields:
        if kind.item is None:
            unknown.extend(f"{path}{name}" for name in value if name not in kind.fields)
        return {
            name: _keep_known(part, kind.of(name), f"{path}{name}.", unknown)
            for name, part in value.items()
            if name in kind.fields or kind.item is not None
        }
    if isinstance(value, dict) and kind.item is not None and kind.shape is FieldShape.MAP:
        return {name: _keep_known(part, kind.item, f"{path}{name}.", unknown) for name, part in value.items()}
    if isinstance(value, list) and kind.item is not None:
        start = path.removesuffix(".")
        return [_keep_known(part, kind.item, f"{start}[{index}].", unknown) for index, part in enumerate(value)]
    return value
