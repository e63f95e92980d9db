"""Simulated hosts for acceptance tests, and an inventory that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

FLEET = """
nodes:
- {name: good-1, gpu: {model: T4, count: 1}}
- {name: two-1, gpu: {model: T4, count: 2}}
- {name: held-1, gpu: {model: T4, count: 1}, host: {nouveau: true, in_use: [nouveau]}}
- {name: away-1, gpu: {model: T4, count: 1}, host: {reachable: false}}
- {name: cpu-1}
"""
INVENTORY = """
name: test
cluster: {sandbox: FLEET}
release: "26.7.0"
pools:
  t4: {os: ubuntu22.04, gpu: {model: T4, count: 1}}
  cpu: {os: ubuntu22.04}
  alone: {os: ubuntu22.04, gpu: {model: T4, count: 1}, host_prerequisites: {enabled: false}}
nodes:
- {name: good-1, pool: t4}
- {name: two-1, pool: t4}
- {name: held-1, pool: t4}
- {name: away-1, pool: t4}
- {name: cpu-1, pool: cpu}
- {name: alone-1, pool: alone}
"""


@pytest.fixture
def inventory_file(tmp_path: Path) -> Path:
    """An inventory on a fleet of a test's own."""
    (tmp_path / "mine.yaml").write_text(FLEET)
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY.replace("FLEET", str(tmp_path / "mine.yaml")))
    return path
