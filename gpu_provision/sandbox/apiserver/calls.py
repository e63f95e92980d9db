"""A request and its answer, free of any HTTP library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import protobuf
from gpu_provision.sandbox.apiserver.objects import dumped
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import StatusError, bad_request, invalid_value, unsupported_media_type
from gpu_provision.sandbox.apiserver.targets import Target

JSON = "application/json"
_BODY_TYPES = ("application/json", "application/yaml")
_LONGEST_MANAGER = 128
_MANAGER, _DRY_RUN = "fieldManager", "dryRun"


class _PlainLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Reads what JSON could say: timestamps stay text."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request for a resource."""

    method: str
    target: Target
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
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            message = f'{name}: Invalid value: "{text}": must be a number'
            raise bad_request(message) from error

    def write_options(self) -> WriteOptions:
        """Return who writes, and whether for real. Raises StatusError."""
        return WriteOptions(manager=self.manager(), dry_run=self.dry_run())

    def manager(self) -> str:
        """Return the field manager: the parameter, else the first word of the User-Agent."""
        given = self.query.get(_MANAGER, "")
        if len(given) > _LONGEST_MANAGER:
            why = f"may not be longer than {_LONGEST_MANAGER}"
            raise _bad_option(_MANAGER, f'"{given}"', why)
        return given or self.headers.get("User-Agent", "").partition("/")[0] or "unknown"

    def dry_run(self) -> bool:
        """Say whether nothing is to be kept. Raises StatusError 422 for a value other than All."""
        given = self.query.get(_DRY_RUN, "")
        if given not in ("", "All"):
            why = 'Unsupported value: supported values: "All"'
            raise _bad_option(_DRY_RUN, f'"{given}"', why)
        return given == "All"

    def object(self) -> Any:
        """Return the body as a value. Raises StatusError 400, or 415 for a form that is not understood."""
        if self.content_type == protobuf.CONTENT_TYPE:
            return protobuf.decoded(self.body)
        if self.content_type and self.content_type not in _BODY_TYPES:
            raise unsupported_media_type(self.content_type, [*_BODY_TYPES, protobuf.CONTENT_TYPE])
        return decoded(self.body)

    def details(self) -> Any:
        """Return the body as a value, None if there is no body."""
        return self.object() if self.body.strip() else None


def _bad_option(name: str, shown: str, why: str) -> StatusError:
    cause = invalid_value(name, shown, why)
    return StatusError(422, "Invalid", f'Options.meta.k8s.io "" is invalid: {cause.field}: {cause.message}')


def decoded(body: bytes) -> Any:
    """Read JSON, or YAML where it is not JSON. Raises StatusError 400."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return yaml.load(body, Loader=_PlainLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        message = (
            f"the object provided is unrecognized: couldn't get version/kind; it is neither JSON nor YAML: {error}"
        )
        raise bad_request(message) from error


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    code: int
    body: bytes
    type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on; each piece is sent at once."""

    pieces: AsyncIterator[bytes]
    type: str = JSON
    headers: tuple[tuple[str, str], ...] = field(default=())


def reply(value: Object, code: int = 200, kind: str = JSON) -> Reply:
    """Return a value as an answer."""
    return Reply(code, dumped(value), kind)


def refusal(error: StatusError) -> Reply:
    """Return an error as an answer."""
    headers = (("Retry-After", str(error.retry_after)),) if error.retry_after else ()
    return Reply(error.code, dumped(error.status()), JSON, headers)


def warning(text: str) -> tuple[str, str]:
    """Return the header that makes clients print a warning."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "Warning", f'299 - "{escaped}"'
