"""One suite, two servers: every test runs on the sandbox, and with ``-m real`` on a real control plane."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.contract import servers
from tests.contract.client import Object, Server, until

_STARTS = {"sandbox": servers.sandbox, "real": servers.real}


@pytest.fixture(scope="session", params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that a test runs on, with controllers and without nodes; all tests of a session share it."""
    with _STARTS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    """A namespace of the test's own, with its default service account; it is deleted after the test."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    body: Object = {"metadata": {"name": name}}
    server.make("/api/v1/namespaces", body)
    until(lambda: servers.is_furnished(server, name))
    yield name
    server.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(autouse=True)
def _version(request: pytest.FixtureRequest) -> None:
    """Skip, on a server that is too old, what `@pytest.mark.since(1, 25)` marks."""
    marker = request.node.get_closest_marker("since")
    if marker is None:
        return
    server: Server = request.getfixturevalue("server")
    if not server.at_least(*marker.args):
        major, minor = server.version
        pytest.skip(f"Kubernetes {major}.{minor} has not got it; {'.'.join(map(str, marker.args))} has")


def pytest_configure(config: pytest.Config) -> None:
    """Make the suite's own marker known."""
    config.addinivalue_line("markers", "since(major, minor): the behaviour is that of a version and newer ones")
