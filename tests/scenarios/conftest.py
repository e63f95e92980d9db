"""Sandboxes for scenarios: one that a module shares, and fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A sandbox with the default fleet that all tests of a module share, in their order."""
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.down()


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds of a test's own."""
    made: list[World] = []

    def make(**changes: Any) -> World:
        made.append(World(tmp_path, fleet=changes or None))
        return made[-1]

    yield make
    for one in made:
        one.down()
