"""A sandbox of our own for tests of the host phase."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.sandbox import hosts


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where simulated hosts are, for a module's tests together."""
    if hosts.isolation_problem():
        pytest.skip(hosts.isolation_problem())
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hosts")
        patch.setenv(hosts.DIRECTORY_VARIABLE, str(folder))
        yield folder
