"""What a node offers, against its labels and the inventory: whole, shared and MIG devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components.gpu_resources import (
    count_problem,
    declared_devices,
    geometry_problem,
    read_devices,
    resource_to_request,
)
from gpu_provision.components.targets import context
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Gpu
from tests import data_file
from tests.components import builders

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


def test_mig_devices_are_offered_as_often_as_they_are_shared() -> None:
    """In a way that is not known they are not counted."""
    pool = {"gpu": {"model": "H100", "count": 8}, "mig": {"config": "all-3g.40gb"}, "node_selector": {"a": "b"}}
    inventory = builders.inventory_with({"pools": {"mig": pool}})
    gpu = "nvidia.com/gpu"
    declared = [declared_devices(inventory.pools["mig"], "", inventory, each) for each in ({}, {gpu: 4}, None)]
    assert declared == [{gpu: 16}, {gpu: 64}, {}]
    labels = {"a": "b", "nvidia.com/mig.config": "all-3g.40gb", "nvidia.com/mig.config.state": "success"}
    facts = ClusterFacts(nodes=(builders.node("mig-1", labels=labels, gpus_allocatable=16),))
    target = next(each for each in context(inventory, facts).targets if each.name == "mig-1")
    assert not geometry_problem(target, inventory, {})
    found = geometry_problem(target, inventory, {gpu: 4})
    assert found == f"all-3g.40gb makes 16 {gpu}, each offered 4 times, the node offers 16 to pods"
