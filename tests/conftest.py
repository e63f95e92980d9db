"""Fixtures of every test: its own state folders, so that no test touches the user's."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling, Scheduling

from gpu_provision.sandbox import hosts, lifecycle
from gpu_provision.sandbox.state import DIRECTORY_VARIABLE
from tests.pyinfra_server import PyinfraServer

os.environ.pop("COLUMNS", None)  # xdist sets it, and a command would wrap its lines there


_ONE_WORKER = frozenset(
    {"tests/real/node", "tests/real/node/optional", "tests/real/hosts", "tests/real/hosts/machines"}
)
"""Folders whose files share a node, or a limit of this machine: inotify instances, and memory for two machines."""
_LONGEST_FIRST = ("tests/real/hosts/machines/", "tests/real/node/test_", "tests/real/node/", "tests/scenarios/")
"""Paths of tests that take minutes, in order, so that workers end at the same time; for --no-loadscope-reorder."""


class _Files(LoadFileScheduling):
    """Gives each file to a worker as a whole, and the folders of _ONE_WORKER."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = file.rpartition("/")[0]
        return folder if folder in _ONE_WORKER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return _Files(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first."""
    items.sort(key=lambda item: [not item.nodeid.startswith(path) for path in _LONGEST_FIRST])


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let Ctrl-C reach child processes: a shell starts background jobs, such as CI, with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point state, cache and configuration folders at a temporary folder."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as environment:
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            folder = home / name.lower()
            folder.mkdir()
            environment.setenv(name, str(folder))
        environment.setenv("GPU_PROVISION_SANDBOX_DIR", str(home / "sandboxes"))
        environment.delenv("KUBECONFIG", raising=False)
        yield


@pytest.fixture(scope="session")
def checkout() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def pyinfra_server() -> Iterator[PyinfraServer]:
    """Runs commands of pyinfra that begin at once."""
    with contextlib.closing(PyinfraServer()) as made:
        yield made


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder of the sandboxes that a test starts; those that still run end with it."""
    assert not hosts.isolation_problem(), hosts.isolation_problem()
    folder = tmp_path / "state"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(folder))
    yield folder
    end_sandboxes(folder)


def end_sandboxes(folder: Path) -> None:
    for home in folder.glob("*/"):
        lifecycle.down(directory=home)


@pytest.fixture
def without_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every Python process of a test report that the machine allows no namespaces."""
    folder = tmp_path / "refusing"
    folder.mkdir()
    reason = "this machine does not let root make namespaces (unshare: Operation not permitted)"
    lines = ("from gpu_provision.sandbox import hosts", f"hosts.isolation_problem = lambda: {reason!r}", "")
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(folder))
