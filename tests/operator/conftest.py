"""Inventories that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
INVENTORIES = (
    *sorted((REPOSITORY / "tests/inventory/good").glob("*.yaml")),
    *sorted((REPOSITORY / "inventories").glob("*.yaml")),
    *sorted((REPOSITORY / "examples/infra-repo/inventories").glob("*.yaml")),
)


@pytest.fixture(params=INVENTORIES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    """Return the path of an inventory that is right."""
    found: Path = request.param
    return found
