"""One suite, two servers: scenarios run on the sandbox, and with ``-m real`` on a real control plane."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.pyinfra_server import PyinfraServer
from tests.real.control_plane import given, missing
from tests.scenarios.on_given import given_cluster
from tests.scenarios.on_real import Cluster, Lender, own_cluster, real_world
from tests.scenarios.on_sandbox import SandboxWorld, sandbox_world
from tests.scenarios.warm import Forge
from tests.scenarios.world import PROGRAM, PYINFRA, World, with_spare_nodes

Make = Callable[..., World]


def _cluster(folder: Path) -> contextlib.AbstractContextManager[Cluster]:
    kubeconfig = given()
    if kubeconfig is not None:
        assert os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1", "one worker alone may use a given cluster"
        return given_cluster(kubeconfig, folder)
    if reason := missing():
        pytest.skip(reason)
    return own_cluster(folder)


@pytest.fixture(scope="session", autouse=True)
def _commands_begin_at_once(pyinfra_server: PyinfraServer) -> Iterator[None]:
    with contextlib.closing(Forge()) as forge, pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "servers", {PROGRAM: forge, PYINFRA: pyinfra_server})
        yield


Open = Callable[..., contextlib.AbstractContextManager[World]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a scenario on the sandbox and, with ``-m real``, on a real control plane; one marked real there alone."""
    if "server" in metafunc.fixturenames:
        is_real = any(mark.name == "real" for mark in metafunc.definition.iter_markers())
        sandbox = [] if is_real and not os.environ.get("GPU_PROVISION_TEST_BOTH") else ["sandbox"]
        servers = [pytest.param("real", marks=pytest.mark.real), *sandbox]  # pytest orders tests by the place in here
        metafunc.parametrize("server", servers, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> str:
    """Names what worlds are of: the sandbox, or a real control plane."""
    return str(request.param)


@pytest.fixture(scope="session")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    with contextlib.closing(Lender(lambda: _cluster(tmp_path_factory.mktemp("plane")))) as made:
        yield made


@pytest.fixture(scope="session")
def opening(server: str, lender: Lender) -> Open:
    """Opens worlds, of the sandbox or of a real control plane; of that, one at a time."""
    return sandbox_world if server == "sandbox" else partial(real_world, lender)


@pytest.fixture(scope="module")
def world(opening: Open, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with the default fleet and spare nodes that all tests of a module share, in their order."""
    with opening(tmp_path_factory.mktemp("world"), **with_spare_nodes()) as made:
        yield made


@pytest.fixture
def new_world(opening: Open, tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as opened:
        yield lambda **fleet: opened.enter_context(opening(tmp_path, **fleet))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    with sandbox_world(tmp_path_factory.mktemp("sandbox")) as made:
        yield made


@pytest.fixture
def new_sandbox(tmp_path: Path) -> Iterator[Callable[..., SandboxWorld]]:
    """Makes a sandbox, for what only its API server can be made to do."""
    with contextlib.ExitStack() as opened:
        yield lambda **fleet: opened.enter_context(sandbox_world(tmp_path, **fleet))
