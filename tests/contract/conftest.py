"""One suite for two servers: the sandbox, and with ``-m real`` a real control plane."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import servers
from tests.contract.client import Object, Server, until
from tests.contract.page import Outcomes, page, row_of

_STARTS = {"sandbox": servers.sandbox, "real": servers.real}


@pytest.fixture(scope="session", params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a session, with controllers and without nodes."""
    with _STARTS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    body: Object = {"metadata": {"name": name}}
    server.make("/api/v1/namespaces", body)
    until(lambda: servers.has_defaults(server, name))
    yield name
    server.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def _controllers(server: Server) -> None:
    if not server.controllers:
        pytest.skip("the programs at hand lack the controllers")


@pytest.fixture(autouse=True)
def _version(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Skip tests with `@pytest.mark.since(1, 25)` on an older server."""
    if "server" not in request.fixturenames:
        return
    server: Server = request.getfixturevalue("server")
    record_property("release", server.release)
    marker = request.node.get_closest_marker("since")
    if marker and not server.at_least(*marker.args):
        pytest.skip(f"Kubernetes {server.release} has not got it; {'.'.join(map(str, marker.args))} has")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contract-table", metavar="FILE", help="write what each server did to this page")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "since(major, minor): the behavior is that of a version and newer ones")
    if path := config.getoption("--contract-table", default=None):
        config.pluginmanager.register(_OutcomeRecorder(Path(path)))


class _OutcomeRecorder:
    """Records the outcomes of a run, and writes the page at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, Outcomes] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = row_of(report.nodeid)
        if found is None or not (report.when == "call" or report.outcome != "passed"):
            return
        row, kind = found
        release = dict(report.user_properties).get("release", "")
        self._seen.setdefault(f"{kind} {release}" if kind == "real" else kind, Outcomes()).add(row, report.outcome)

    def pytest_sessionfinish(self) -> None:
        before = self._path.read_text("utf-8") if self._path.exists() else ""
        self._path.write_text(page(self._seen, before), "utf-8")
