"""A small client of an API server: HTTPS with verified certificates."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from gpu_provision.sandbox.client import KubeCredentials, load_credentials

Object = dict[str, Any]

JSON = "application/json"
YAML = "application/yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

AGENT = "contract/1.0"
SECONDS = 120.0
"""Everything that is awaited comes within this time, or the test fails."""


class Answer(NamedTuple):
    code: int
    body: Any
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"{self.code} {self.body}"

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", "")) if self._is_status else ""

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if self._is_status else ""

    @property
    def causes(self) -> list[Object]:
        return list((self.body.get("details") or {}).get("causes") or ()) if self._is_status else []

    @property
    def _is_status(self) -> bool:
        return isinstance(self.body, dict) and self.body.get("kind") == "Status"


class Event(NamedTuple):
    """One event of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and its object."""

    type: str
    object: Object

    @property
    def name(self) -> str:
        return str(self.object.get("metadata", {}).get("name", ""))


class Watch:
    def __init__(self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.headers = dict(response.headers.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        while line := self._response.readline():
            found = json.loads(line)
            yield Event(found["type"], found["object"])

    def next(self) -> Event:
        """Return the next event; fail after the end of the watch or the deadline."""
        found = next(iter(self), None)
        assert found is not None, "the server ended the watch"
        return found

    def until(self, condition: Callable[[Event], Any]) -> list[Event]:
        seen = []
        for event in self:
            seen.append(event)
            if condition(event):
                return seen
        message = f"the server ended the watch after {[(event.type, event.name) for event in seen]}"
        raise AssertionError(message)


@dataclass(frozen=True)
class Server:
    """A client of one API server.

    Attributes:
        kind: ``sandbox`` or ``real``.
        kubeconfig: The administrator's.
        directory: A folder for files of this server.
        access: Credentials of the requests.
        user: Returns the kubeconfig of another user without permissions; None if the server has no other users.
        controllers: Whether controllers and a scheduler run.
        compact: Compacts the history, so that old versions expire; None if the server cannot.
        node_flags: Flags of simulated nodes, so that the server trusts their kubelets.
    """

    kind: str
    kubeconfig: Path
    directory: Path
    access: KubeCredentials
    user: Callable[[str], Path] | None = None
    controllers: bool = True
    compact: Callable[[], None] | None = None
    node_flags: tuple[str, ...] = ()
    _kept: threading.local = field(default_factory=threading.local, repr=False)

    @cached_property
    def version(self) -> tuple[int, int]:
        major, minor = re.findall(r"\d+", self.release)[:2]
        return int(major), int(minor)

    @cached_property
    def release(self) -> str:
        return str(self.ask("GET", "/version").body["gitVersion"]).removeprefix("v")

    def at_least(self, major: int, minor: int) -> bool:
        return self.version >= (major, minor)

    def as_user(self, name: str) -> Server:
        assert self.user is not None
        return self.with_access(load_credentials(self.user(name)))

    def with_access(self, access: KubeCredentials) -> Server:
        return replace(self, access=access, _kept=threading.local())

    def connection(self) -> http.client.HTTPSConnection:
        address, context = urlsplit(self.access.server), self.access.ssl_context()
        return http.client.HTTPSConnection(address.hostname or "", address.port, context=context, timeout=SECONDS)

    def ask(  # noqa: PLR0913 - the parts of a request
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        *,
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = (
            self._headers(accept) | ({"Content-Type": content_type} if body is not None else {}) | dict(headers or {})
        )
        response = self._sent(verb, path, _encoded(body), sent)
        return _answer(response.status, response.headers, response.read())

    def watch(self, path: str, *, accept: str = JSON) -> Watch:
        """Watch a collection: ``path`` with its query, without ``watch=true``. An error fails."""
        connection = self.connection()
        connection.request("GET", f"{path}{'&' if '?' in path else '?'}watch=true", headers=self._headers(accept))
        response = connection.getresponse()
        if response.status == http.HTTPStatus.OK:
            return Watch(connection, response)
        with contextlib.closing(connection):
            message = f"{response.status}: {response.read().decode()}"
            raise AssertionError(message)

    def make(self, path: str, body: Object) -> Object:
        answer = self.ask("POST", path, body)
        assert answer.code == http.HTTPStatus.CREATED, answer
        made: Object = answer.body
        return made

    def get(self, path: str) -> Object:
        answer = self.ask("GET", path)
        assert answer.code == http.HTTPStatus.OK, answer
        found: Object = answer.body
        return found

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Object:
        answer = self.ask("PATCH", path, body, content_type)
        assert answer.code in (http.HTTPStatus.OK, http.HTTPStatus.CREATED), answer
        patched: Object = answer.body
        return patched

    def apply(self, path: str, body: Object, *, manager: str, force: bool = False, dry_run: bool = False) -> Answer:
        query = f"fieldManager={manager}" + ("&force=true" if force else "") + ("&dryRun=All" if dry_run else "")
        return self.ask("PATCH", f"{path}?{query}", body, APPLY)

    def delete(self, path: str, body: Object | None = None) -> None:
        answer = self.ask("DELETE", path, body)
        assert answer.code in (http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED, http.HTTPStatus.NOT_FOUND), answer

    def is_gone(self, path: str) -> bool:
        return self.ask("GET", path).code == http.HTTPStatus.NOT_FOUND

    def _headers(self, accept: str) -> dict[str, str]:
        held = {"Accept": accept, "User-Agent": AGENT}
        return held | ({"Authorization": f"Bearer {self.access.token}"} if self.access.token else {})

    def _sent(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Use the thread's connection, or a new one if the server has closed it."""
        kept = getattr(self._kept, "connection", None)
        if kept is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):
                kept.request(verb, path, body, headers)
                response: http.client.HTTPResponse = kept.getresponse()
                return response
            kept.close()
        self._kept.connection = self.connection()
        self._kept.connection.request(verb, path, body, headers)
        answer: http.client.HTTPResponse = self._kept.connection.getresponse()
        return answer

    def close(self) -> None:
        if kept := getattr(self._kept, "connection", None):
            kept.close()


def _encoded(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _answer(code: int, headers: http.client.HTTPMessage, content: bytes) -> Answer:
    is_json = headers.get_content_type() == JSON
    fields = {name: ", ".join(headers.get_all(name) or ()) for name in headers}
    return Answer(code, json.loads(content) if is_json and content else content.decode(), fields)


def until(condition: Callable[[], Any], *, seconds: float = SECONDS) -> Any:
    """Wait until a condition gives something true and return that; fail after a deadline."""
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up, "the condition did not come true in time"
        time.sleep(0.05)
    return found
