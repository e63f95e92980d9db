"""What a node offers, against its labels and the inventory: whole, shared and MIG devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components.gpu_resources import count_problem, read_devices, resource_to_request
from gpu_provision.model.inventory import Gpu
from tests import data_file

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("name", CASES)
def test_counts_agree_or_the_difference_is_named(name: str) -> None:
    case: dict[str, Any] = {"labels": {}, "replicas": {}, "problem": "", **CASES[name]}
    labels = {f"nvidia.com/{key}": str(value) for key, value in case["labels"].items()}
    replicas = {f"nvidia.com/{key}": count for key, count in case["replicas"].items()}
    devices = read_devices({f"nvidia.com/{key}": str(value) for key, value in case["offers"].items()} | {"cpu": "8"})
    assert (
        count_problem(
            Gpu() if case.get("any") else Gpu("H100", 8),
            labels,
            devices,
            replicas=None if case.get("shared") else replicas,
        )
        == case["problem"]
    )
    assert resource_to_request(devices) == f"nvidia.com/{case['requests']}"
