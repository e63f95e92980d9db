"""A separate sandbox for tests of the host phase."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.hosts import runner
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.state import DIRECTORY_VARIABLE
from tests.hosts.fleet import inventory
from tests.hosts.warm import Forge


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """Makes workers of the host phase that begin at once."""
    made = Forge()
    yield made
    made.close()


@pytest.fixture
def cold_worker() -> None:
    """For tests of how a worker starts and ends: it is a process of its own from the start."""


@pytest.fixture(autouse=True)
def _warm_worker(request: pytest.FixtureRequest, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    if "cold_worker" not in request.fixturenames:
        monkeypatch.setattr(runner, "_worker", forge.worker)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where simulated hosts are, for a module's tests together."""
    assert not hosts.isolation_problem(), hosts.isolation_problem()
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hosts")
        patch.setenv(DIRECTORY_VARIABLE, str(folder))
        yield folder


@pytest.fixture
def fresh(tmp_path: Path, sandbox: Path) -> tuple[Inventory, Path]:
    """An inventory of one host that was only read yet, and the host's root."""
    declared = inventory(tmp_path, "good-1")
    runner.prepare(declared, dry_run=True)
    return declared, sandbox / "mine/hosts/good-1"
