"""A request for a resource and its answer, free of any HTTP library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import protobuf
from gpu_provision.sandbox.apiserver.errors import StatusError, bad_request, invalid_options, unsupported_media_type
from gpu_provision.sandbox.apiserver.objects import to_json
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo

JSON = "application/json"
_BODY_TYPES = ("application/json", "application/yaml")
_MAX_MANAGER_LENGTH = 128


class _JsonLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Reads what JSON could say: timestamps stay text."""


_JsonLoader.yaml_implicit_resolvers = {
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
        """The resource that the path names."""
        return self.target.info

    @property
    def accept(self) -> str:
        """The Accept header."""
        return self.headers.get("Accept", "")

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip()

    def flag(self, name: str) -> bool:
        """Return a boolean parameter."""
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """Return a parameter as a number. Raises StatusError 400."""
        text = self.query.get(name, "")
        try:
            return int(text) if text else None
        except ValueError as error:
            message = f'{name}: Invalid value: "{text}": must be a number'
            raise bad_request(message) from error

    def write_options(self) -> WriteOptions:
        """Return who writes, and whether for real. The manager's default is the first word of the User-Agent.

        Raises StatusError 422.
        """
        manager = self.query.get("fieldManager", "")
        if len(manager) > _MAX_MANAGER_LENGTH:
            text = f'fieldManager: Invalid value: "{manager}": may not be longer than {_MAX_MANAGER_LENGTH}'
            raise invalid_options(text)
        agent = self.headers.get("User-Agent", "").partition("/")[0]
        return WriteOptions(manager=manager or agent or "unknown", dry_run=self.dry_run())

    def dry_run(self) -> bool:
        """Say whether nothing is to be kept. Raises StatusError 422 for a value other than All."""
        given = self.query.get("dryRun", "")
        if given not in ("", "All"):
            text = f'dryRun: Invalid value: "{given}": Unsupported value: supported values: "All"'
            raise invalid_options(text)
        return given == "All"

    def object(self) -> Any:
        """Return the body as a value. Raises StatusError 400, or 415 for a form that is not understood."""
        if self.content_type == protobuf.CONTENT_TYPE:
            return protobuf.decode_protobuf(self.body)
        if self.content_type and self.content_type not in _BODY_TYPES:
            raise unsupported_media_type(self.content_type, [*_BODY_TYPES, protobuf.CONTENT_TYPE])
        return parse_body(self.body)

    def details(self) -> Any:
        """Return the body as a value, None if there is no body."""
        return self.object() if self.body.strip() else None


def parse_body(body: bytes) -> Any:
    """Read JSON, or YAML where it is not JSON. Raises StatusError 400."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return yaml.load(body, Loader=_JsonLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        unrecognized = "the object provided is unrecognized: couldn't get version/kind; it is neither JSON nor YAML"
        message = f"{unrecognized}: {error}"
        raise bad_request(message) from error


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    code: int
    body: bytes
    type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """An answer that goes on; each piece is sent at once."""

    pieces: AsyncIterator[bytes]
    type: str = JSON


def json_response(value: Object, code: int = 200) -> Response:
    """Return a value as an answer."""
    return Response(code, to_json(value))


def error_response(error: StatusError) -> Response:
    """Return an error as an answer."""
    headers = (("Retry-After", str(error.retry_after)),) if error.retry_after else ()
    return Response(error.code, to_json(error.status()), JSON, headers)
