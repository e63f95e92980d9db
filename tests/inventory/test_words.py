"""Guesses at what the user meant."""

from __future__ import annotations

import pytest

from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.schema_errors import suggest_value


@pytest.mark.parametrize(
    ("definition", "value", "better"),
    [
        ("name", "T4_Pool", "t4-pool"),
        ("name", "a" * 70, ""),
        ("os", "Ubuntu 22.04", "ubuntu22.04"),
        ("os", "ubuntu-24.04", "ubuntu24.04"),
        ("os", "Ubuntu", ""),
        ("driver_version", "v580.126.20", "580.126.20"),
        ("driver_version", "580.126.20-ubuntu22.04", "580.126.20"),
        ("repository", "https://nvcr.io/nvidia/", "nvcr.io/nvidia"),
        ("image", "nvcr.io/nvidia/driver:580.126.20", "driver"),
        ("quantity", "512MB", "512M"),
        ("quantity", "lots", ""),
    ],
)
def test_the_value_behind_a_malformed_one(definition: str, value: str, better: str) -> None:
    """Common slips are undone; nothing is made up."""
    assert suggest_value(value, schema()["$defs"][definition]["pattern"]) == better
