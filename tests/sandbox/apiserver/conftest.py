"""A running API server, its registry without HTTP, and small clients for both."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_provision.sandbox.apiserver import Server, serve
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.resources import RequestInfo, parse_path
from gpu_provision.sandbox.apiserver.server import bootstrap
from gpu_provision.sandbox.apiserver.store import Store
from tests.loop_thread import LoopThread

_DEADLINE = 60.0


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    body: Any


class Running(LoopThread):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.server: Server = self.run(serve(directory))

    def stop(self) -> None:
        self.run(self.server.close())
        self.close()

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.server.authority))
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, context=context, timeout=_DEADLINE)

    def ask(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        token: str | None = None,
        accept: str = "application/json",
        agent: str = "test",
    ) -> Answer:
        """Send a request, with a body of bytes or JSON; return the response with JSON decoded."""
        connection = self.connection()
        try:
            given = token if token is not None else self.server.tokens.token()
            headers = {"Authorization": f"Bearer {given}", "Accept": accept, "User-Agent": agent}
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**headers, "Content-Type": kind} if data else headers)
            response = connection.getresponse()
            content = response.read()
            is_json = (response.headers.get("Content-Type") or "").startswith("application/json")
            value = json.loads(content) if is_json and content.count(b"\n") <= 1 else content.decode()
            return Answer(response.status, dict(response.headers.items()), value)
        finally:
            connection.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def started() -> Running:
        running.append(Running(tmp_path / "sandbox"))
        return running[-1]

    yield started
    for one in running:
        if one._thread.is_alive():
            one.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield running
    running.stop()


class Cluster:
    def __init__(self, path: Path | str = ":memory:") -> None:
        self.store = Store(path)
        self.registry = Registry(self.store)
        bootstrap(self.registry, "no certificate")

    def at(self, path: str) -> RequestInfo:
        """Return the parts of a path such as ``api/v1/namespaces/default/pods/x``."""
        found = parse_path(path, self.registry.catalog)
        assert found is not None, path
        return found

    def create(self, path: str, name: str, **parts: Any) -> dict[str, Any]:
        body = {"metadata": {"name": name, **parts.pop("metadata", {})}, **parts}
        return self.registry.create(self.at(path), body).copy()

    def get(self, path: str) -> dict[str, Any]:
        return self.registry.get(self.at(path)).copy()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.store.close()


def eventually(check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _DEADLINE
    while time.monotonic() < deadline:
        if answer := check():
            return answer
        time.sleep(0.02)
    pytest.fail(f"not within {_DEADLINE} s: {what}")


POD = {"containers": [{"name": "main", "image": "example.org/app:1"}]}


def workload(image: str = "example.org/app:1") -> dict[str, Any]:
    labels = {"app": "demo"}
    return {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}},
    }
