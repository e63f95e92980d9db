"""Simulated hosts for acceptance tests, and an inventory that names them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def inventory_file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        Path(__file__).with_name("inventory.yaml").read_text().replace("FLEET", str(tmp_path / "mine.yaml"))
    )
    (tmp_path / "mine.yaml").write_text(Path(__file__).with_name("fleet.yaml").read_text())
    return path
