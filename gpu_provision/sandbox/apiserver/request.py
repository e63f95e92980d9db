"""Requests for resources, with bodies in JSON, YAML or protobuf, and responses, without an HTTP library.

kubectl's generators, drain and ``auth can-i`` send only protobuf; ``protobuf.json`` has the field numbers. Responses
are always JSON, which these clients accept, too.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources as files
from typing import Any, ClassVar

import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, refuse, refuse_options, unsupported_media_type
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo
from gpu_provision.sandbox.objects import format_time, to_json

JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
_BODY_TYPES = ("application/json", "application/yaml")
_MAGIC = b"k8s\x00"
_VARINT, _BYTES, _FIXED_SIZES = 0, 2, {1: 8, 5: 4}
_SIGN, _WORD = 1 << 63, 1 << 64
# Groups whose messages have another package name than the group's first part.
_PACKAGES = {"": "core", "rbac.authorization.k8s.io": "rbac"}


class _JsonLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Reads only JSON types: timestamps stay text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True, slots=True)
class Request:
    """One request for a resource."""

    method: str
    target: RequestInfo
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: str

    @property
    def info(self) -> ResourceInfo:
        """The resource of the path."""
        return self.target.info

    @property
    def content_type(self) -> str:
        """The media type of the body, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip()

    def flag(self, name: str) -> bool:
        """Return a boolean parameter."""
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """Return a parameter as a number. Raises StatusError 400."""
        text = self.query.get(name, "")
        try:
            return int(text) if text else None
        except ValueError:
            refuse(f'{name}: Invalid value: "{text}": must be a number')

    def write_options(self) -> WriteOptions:
        """Return field manager, by default the first word of the User-Agent, dry run, user. Raises StatusError."""
        manager = self.query.get("fieldManager", "")
        agent = self.headers.get("User-Agent", "").partition("/")[0]
        return WriteOptions(manager=manager or agent or "unknown", dry_run=self.dry_run(), user=self.user)

    def dry_run(self) -> bool:
        """Whether nothing is stored. Raises StatusError 422 for a value other than All."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            text = f'dryRun: Invalid value: "{value}": Unsupported value: supported values: "All"'
            refuse_options(text)
        return value == "All"

    def object(self) -> Any:
        """Return the body as a value, None without a body. Raises StatusError 400, or 415 for an unknown format."""
        if not self.body.strip():
            return None
        if self.content_type == PROTOBUF:
            return decode_protobuf(self.body)
        if self.content_type and self.content_type not in _BODY_TYPES:
            raise unsupported_media_type(self.content_type, [*_BODY_TYPES, PROTOBUF])
        return parse_body(self.body)


def parse_body(body: bytes) -> Any:
    """Read JSON, else YAML. Raises StatusError 400."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return yaml.load(body, Loader=_JsonLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        unrecognized = "the object provided is unrecognized: couldn't get version/kind; it is neither JSON nor YAML"
        refuse(f"{unrecognized}: {error}")


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    code: int
    body: bytes
    type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """A streamed response; each piece is sent at once."""

    pieces: AsyncIterator[bytes]
    type: str = JSON


def json_response(value: Object, code: int = 200) -> Response:
    """Return a response with a value as JSON."""
    return Response(code, to_json(value))


def error_response(error: StatusError) -> Response:
    """Return a response with an error's Status object."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return Response(error.code, to_json(error.status()), JSON, headers)


@cache
def _messages() -> dict[str, dict[int, tuple[str, str]]]:
    table = json.loads((files.files(__package__) / "protobuf.json").read_text("utf-8"))["messages"]
    return {name: {int(number): tuple(row) for number, row in rows.items()} for name, rows in table.items()}


def decode_protobuf(body: bytes) -> Object:
    """Return the object in a protobuf body. Raises StatusError 400 for an unreadable one."""
    if not body.startswith(_MAGIC):
        refuse("the protobuf body cannot be read: it does not start with the mark of Kubernetes")
    try:
        parts = dict(_proto_fields(body[len(_MAGIC) :]))
        kinds = {number: _proto_text(value) for number, value in _proto_fields(parts[1])}
        version, kind = kinds[1], kinds[2]
        group, _, version_name = version.rpartition("/")
        package = "meta" if kind == "DeleteOptions" else _PACKAGES.get(group, group.partition(".")[0])
        name = f"{package}.{'v1' if package == 'meta' else version_name}.{kind}"
        return {"apiVersion": version, "kind": kind, **_proto_message(name, parts.get(2, b""))}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        refuse(f"the protobuf body cannot be read: {error}")


def _proto_message(name: str, data: bytes) -> Object:
    """Return a message in its JSON form. Raises KeyError for an unknown message."""
    rows = _messages()[name]
    result: Object = {}
    for number, raw in _proto_fields(data):
        if number not in rows:
            continue
        field, kind = rows[number]
        shape, _, inner = kind.removeprefix("*").rpartition(" ")
        if not field:
            result.update(_proto_message(kind, raw))
        elif shape == "list":
            result.setdefault(field, []).append(_proto_value(inner, raw))
        elif shape == "map":
            parts = dict(_proto_fields(raw))
            result.setdefault(field, {})[_proto_text(parts.get(1, b""))] = _proto_value(inner, parts.get(2, b""))
        else:
            value = _proto_value(inner, raw)
            if value is not None and (kind.startswith("*") or value not in ("", 0, False, {})):
                result[field] = value
    return result


def _proto_value(kind: str, raw: Any) -> Any:
    scalar = _SCALARS.get(kind)
    return scalar(raw) if scalar else _proto_message(kind, raw)


def _proto_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and raw value, an integer or bytes, of each field. Raises IndexError or ValueError."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        value, place = _varint(data, place) if wire in (_VARINT, _BYTES) else (_FIXED_SIZES[wire], place)
        if wire == _VARINT:
            yield number, value
            continue
        if place + value > len(data):
            message = "a field is longer than the message"
            raise ValueError(message)
        yield number, data[place : place + value]
        place += value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the high bit marks a continuation
            return value, place


def _to_signed(value: int) -> int:
    return value - _WORD if value >= _SIGN else value


def _proto_text(data: bytes) -> str:
    return data.decode("utf-8")


def _proto_time(data: bytes) -> str | None:
    seconds = dict(_proto_fields(data)).get(1)
    return format_time(dt.datetime.fromtimestamp(_to_signed(seconds), dt.UTC)) if seconds else None


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_proto_fields(data))
    return _proto_text(parts.get(3, b"")) if parts.get(1) else _to_signed(parts.get(2, 0))


def _raw_json(data: bytes) -> Any:
    raw = dict(_proto_fields(data)).get(1, b"")
    return json.loads(raw) if raw else None


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": _proto_text,
    "bytes": lambda data: base64.b64encode(data).decode(),
    "bool": bool,
    "int32": _to_signed,
    "int64": _to_signed,
    "meta.v1.Time": _proto_time,
    "meta.v1.MicroTime": _proto_time,
    "meta.v1.FieldsV1": _raw_json,
    "Quantity": lambda data: _proto_text(dict(_proto_fields(data)).get(1, b"")),
    "IntOrString": _int_or_string,
    "RawExtension": _raw_json,
}
