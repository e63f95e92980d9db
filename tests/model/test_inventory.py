"""Names that follow from declared values."""

from __future__ import annotations

import pytest

from gpu_provision.model.inventory import OperatingSystem
from tests.components.builders import inventory


@pytest.mark.parametrize(
    ("name", "version", "tag"),
    [
        ("ubuntu", "22.04", "ubuntu22.04"),
        ("rhel", "9.4", "rhel9"),
        ("rocky", "9", "rocky9"),
        ("sles", "15.6", "sles15.6"),
    ],
)
def test_driver_images_are_tagged_by_operating_system(name: str, version: str, tag: str) -> None:
    assert OperatingSystem(name, version).tag == tag


def test_gpu_nodes_are_those_whose_pool_has_a_gpu() -> None:
    assert [node.name for node in inventory().gpu_nodes] == ["t4-1", "t4-2", "h100-1"]
