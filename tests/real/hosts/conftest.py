"""What the tests of hosts share: the image, machines that have booted, a cluster that stays untouched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import servers
from tests.contract.client import Server
from tests.real.hosts import built
from tests.real.hosts.machine import STOCK, Hardware, Machine, started

_TIMES = pytest.StashKey[dict[str, float]]()

NAMES = ("gpu-1", "gpu-2", "secure", "own-driver-01")
Boot = Callable[..., Machine]
Lap = Callable[[str], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="session")
def image() -> Path:
    """The disk that every machine starts from."""
    if reason := built.machines_missing():
        pytest.skip(reason)
    return built.IMAGE.built()


@pytest.fixture(scope="module")
def start(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boot]:
    """Start machines that end with the module: a name and, if it is special, the hardware."""
    with contextlib.ExitStack() as running:

        def begin(name: str, hardware: Hardware = STOCK) -> Machine:
            folder = tmp_path_factory.mktemp(name, numbered=False)
            return running.enter_context(started(name, image, folder, hardware))

        yield begin


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster that knows the machines by name, and shows whether anybody wrote to it."""
    with servers.sandbox(tmp_path_factory.mktemp("cluster")) as server:
        for name in NAMES:
            server.make("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        yield server


@pytest.fixture(scope="session")
def lap(request: pytest.FixtureRequest) -> Lap:
    """Measure a block, for people; no test depends on it."""
    times = request.config.stash.setdefault(_TIMES, {})

    @contextlib.contextmanager
    def measured(what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        times[what] = time.monotonic() - begin

    return measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    for what, seconds in config.stash.get(_TIMES, {}).items():
        terminalreporter.write_line(f"hosts: {what}: {seconds:.1f} s")
