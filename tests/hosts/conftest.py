"""A sandbox of our own for tests of the host phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.sandbox import hosts


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory for the state of sandboxes; empty."""
    if hosts.isolation_problem():
        pytest.skip(hosts.isolation_problem())
    monkeypatch.setenv(hosts.DIRECTORY_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"
