"""What the tests of hosts share: the image, machines that have booted, a cluster that stays untouched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.answers import Answer
from tests.contract import servers
from tests.contract.client import Server
from tests.real.hosts import built, state
from tests.real.hosts.machine import STOCK, Hardware, Machine, started
from tests.real.hosts.ssh_host import SshHost
from tests.real.hosts.user import User

NAMES = ("gpu-1", "gpu-2", "secure", "own-driver-01")
Boot = Callable[..., Machine]


@pytest.fixture(scope="session")
def image() -> Path:
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


@pytest.fixture(scope="module")
def as_they_came(hosts: tuple[SshHost, ...]) -> dict[str, set[str]]:
    """All that is in /etc of some of a module's hosts before the first run."""
    return {host.name: state.contents(state.of(host)) for host in hosts[:: 1 + len(hosts) // 6]}


@pytest.fixture(scope="module")
def user(
    request: pytest.FixtureRequest,
    hosts: tuple[SshHost, ...],
    cluster: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> User:
    """The owner of a module's hosts, whose inventory has the module's SETTINGS."""
    return User(tmp_path_factory.mktemp("owner"), hosts, cluster.kubeconfig, request.module.SETTINGS)


@pytest.fixture(scope="module")
def first_run(user: User, as_they_came: dict[str, set[str]]) -> Answer:
    """What the first run says of hosts as they came."""
    assert all(as_they_came.values())
    return user.apply("--hosts-only")


def assert_as_they_came(hosts: tuple[SshHost, ...], as_they_came: dict[str, set[str]]) -> None:
    """See that every file in /etc is as it was, with mode, owner and time."""
    assert {host.name: state.contents(state.of(host)) for host in hosts if host.name in as_they_came} == as_they_came
