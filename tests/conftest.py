"""What every test gets: state folders of its own, so that no test touches the user's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.sandbox import hosts
from tests.real.kept_logs import pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary", "pytest_testnodedown"]


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let Ctrl-C reach what tests start: a shell starts what runs in its background, such as CI, deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point state, cache and configuration folders at a place that goes with the test run."""
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
    """The top folder of the project."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory for the state of sandboxes; empty. Skips where no host can be simulated."""
    if hosts.isolation_problem():
        pytest.skip(hosts.isolation_problem())
    monkeypatch.setenv(hosts.DIRECTORY_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"
