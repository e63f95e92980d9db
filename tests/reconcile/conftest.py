"""A cluster in which nothing happens by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandbox.apiserver.conftest import Running, start

__all__ = ["start"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An API server without controllers and kubelets, empty when a module's tests begin."""
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield running
    running.stop()
