"""One suite, two servers: every scenario runs on the sandbox, and with ``-m real`` on a real control plane."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.control_plane import Site, control_plane, given, missing
from tests.scenarios.on_given import GivenCluster
from tests.scenarios.on_real import Cluster, OwnCluster, RealWorld
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.warm import Forge
from tests.scenarios.world import ADOPTER, OPERATOR, World, with_spare_nodes

Make = Callable[..., World]


@contextlib.contextmanager
def _sandbox(folder: Path, **fleet: Any) -> Iterator[SandboxWorld]:
    with contextlib.ExitStack() as ended:
        made = SandboxWorld(folder, **fleet)
        ended.callback(made.down)
        yield made


@contextlib.contextmanager
def _real(folder: Path, **fleet: Any) -> Iterator[World]:
    with _cluster(folder) as cluster, contextlib.ExitStack() as ended:
        made = RealWorld(folder, cluster, **fleet)
        ended.callback(made.down)
        yield made


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Cluster]:
    kubeconfig = given()
    if kubeconfig is not None:
        yield GivenCluster(kubeconfig, folder / "plane")
        return
    if reason := missing():
        pytest.skip(reason)
    with control_plane(folder / "plane", Site(users={OPERATOR: "", ADOPTER: ""})) as plane:
        yield OwnCluster(plane)


@pytest.fixture(scope="session", autouse=True)
def _commands_begin_at_once() -> Iterator[None]:
    with contextlib.closing(Forge()) as forge, pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "forge", forge)
        yield


_OPEN = {"sandbox": _sandbox, "real": _real}
_BOTH = ["sandbox", pytest.param("real", marks=pytest.mark.real)]
Open = Callable[..., contextlib.AbstractContextManager[World]]


@pytest.fixture(scope="session", params=_BOTH)
def server(request: pytest.FixtureRequest) -> str:
    """Names what worlds are of: the sandbox, or a real control plane."""
    return str(request.param)


@pytest.fixture(scope="session")
def opening(server: str) -> Open:
    """Opens worlds, of the sandbox or of a real control plane."""
    return _OPEN[server]


@pytest.fixture(scope="module")
def world(opening: Open, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with the default fleet and spare nodes that all tests of a module share, in their order."""
    with opening(tmp_path_factory.mktemp("world"), **with_spare_nodes()) as made:
        yield made


@pytest.fixture
def new_world(opening: Open, tmp_path: Path) -> Iterator[Make]:
    """Makes a world of a test's own."""
    with contextlib.ExitStack() as opened:
        yield lambda **fleet: opened.enter_context(opening(tmp_path, **fleet))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    """A sandbox with the default fleet that all tests of a module share."""
    with _sandbox(tmp_path_factory.mktemp("sandbox")) as made:
        yield made


@pytest.fixture
def new_sandbox(tmp_path: Path) -> Iterator[Callable[..., SandboxWorld]]:
    """Makes a sandbox, for what only its API server can be made to do."""
    with contextlib.ExitStack() as opened:
        yield lambda **fleet: opened.enter_context(_sandbox(tmp_path, **fleet))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker alone fills and empties a cluster that was given."""
    for item in items if given() is not None else ():
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.xdist_group("the given cluster"))
