"""Reading Kubernetes' protobuf form: kubectl's generators, drain and ``auth can-i`` send nothing else.

``protobuf.json`` holds the field numbers. Answers are always JSON, which such clients accept as well.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources as files
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_FIXED64 = 1
_SIGN, _WORD = 1 << 63, 1 << 64
# Groups whose messages carry another name than the first part of the group.
_PACKAGES = {"": "core", "rbac.authorization.k8s.io": "rbac"}


@cache
def _messages() -> dict[str, dict[int, tuple[str, str]]]:
    text = (files.files(__package__) / "protobuf.json").read_text("utf-8")
    table = json.loads(text)["messages"]
    return {
        name: {int(number): (field, kind) for number, (field, kind) in rows.items()} for name, rows in table.items()
    }


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the high bit says that more follows
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and raw value of each field: an integer or bytes. Raises IndexError or ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        match wire:
            case 0:  # varint
                value, at = _varint(data, at)
                yield number, value
            case 2:  # length and bytes
                length, at = _varint(data, at)
                if at + length > len(data):
                    message = "a field is longer than the message"
                    raise ValueError(message)
                yield number, data[at : at + length]
                at += length
            case 1 | 5:  # fixed numbers
                size = 8 if wire == _FIXED64 else 4
                yield number, data[at : at + size]
                at += size
            case _:
                message = f"wire type {wire} is not used by Kubernetes"
                raise ValueError(message)


def _signed(value: int) -> int:
    return value - _WORD if value >= _SIGN else value


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _time(data: bytes) -> str | None:
    parts = dict(_fields(data))
    if not parts.get(1):
        return None
    moment = dt.datetime.fromtimestamp(_signed(parts[1]), dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(data: bytes) -> str | None:
    parts = dict(_fields(data))
    if not parts.get(1):
        return None
    moment = dt.datetime.fromtimestamp(_signed(parts[1]), dt.UTC).replace(microsecond=parts.get(2, 0) // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _quantity(data: bytes) -> str:
    return _text(dict(_fields(data)).get(1, b""))


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_fields(data))
    return _text(parts.get(3, b"")) if parts.get(1) else _signed(parts.get(2, 0))


def _raw(data: bytes) -> Any:
    raw = dict(_fields(data)).get(1, b"")
    return json.loads(raw) if raw else None


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": _text,
    "bytes": lambda data: base64.b64encode(data).decode(),
    "bool": bool,
    "int32": _signed,
    "int64": _signed,
    "meta.v1.Time": _time,
    "meta.v1.MicroTime": _micro_time,
    "meta.v1.FieldsV1": _raw,
    "Quantity": _quantity,
    "IntOrString": _int_or_string,
    "RawExtension": _raw,
}


def _value(kind: str, raw: Any) -> Any:
    scalar = _SCALARS.get(kind)
    return scalar(raw) if scalar else _message(kind, raw)


def _message(name: str, data: bytes) -> Object:
    """Return a message as the object that its JSON would be. Raises KeyError for one that is not described."""
    rows = _messages()[name]
    result: Object = {}
    for number, raw in _fields(data):
        if number in rows:
            field, kind = rows[number]
            _put(result, field, kind, raw)
    return result


def _put(result: Object, field: str, kind: str, raw: Any) -> None:
    if not field:
        result.update(_message(kind, raw))
        return
    shape, _, inner = kind.removeprefix("*").rpartition(" ")
    if shape == "list":
        result.setdefault(field, []).append(_value(inner, raw))
    elif shape == "map":
        parts = dict(_fields(raw))
        result.setdefault(field, {})[_text(parts.get(1, b""))] = _value(inner, parts.get(2, b""))
    else:
        value = _value(inner, raw)
        if value is not None and (kind.startswith("*") or value not in ("", 0, False, {})):
            result[field] = value


def _name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    package = "meta" if kind == "DeleteOptions" else _PACKAGES.get(group, group.partition(".")[0])
    return f"{package}.{'v1' if package == 'meta' else version}.{kind}"


def _envelope(body: bytes) -> tuple[str, str, bytes]:
    """Return apiVersion, kind and the message itself."""
    if not body.startswith(_MAGIC):
        message = "it does not start with the mark of Kubernetes"
        raise ValueError(message)
    parts = dict(_fields(body[len(_MAGIC) :]))
    kinds = {number: _text(value) for number, value in _fields(parts[1])}
    return kinds[1], kinds[2], parts.get(2, b"")


def _object(body: bytes) -> Object:
    version, kind, content = _envelope(body)
    name = _name(version, kind)
    if name not in _messages():
        message = f"{kind} in {version} can be sent as JSON only"
        raise ValueError(message)
    return {"apiVersion": version, "kind": kind, **_message(name, content)}


def decode_protobuf(body: bytes) -> Object:
    """Return the object in a protobuf body. Raises StatusError 400 for one that cannot be read."""
    try:
        return _object(body)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        message = f"the protobuf body cannot be read: {error}"
        raise bad_request(message) from error
