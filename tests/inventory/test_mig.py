"""MIG configurations against GPU models; what no node can have is among the bad inventories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory.mig import find_layout, geometry_of, layout_problem, layouts, offered_devices
from gpu_provision.model.operand_specs import Image
from gpu_provision.model.specs import MigManagerConfig, MigManagerSpec
from tests.instance_profiles import instance_profiles

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
RECORDED = sorted(Path(__file__).with_name("instance_profiles").glob("*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['config']} of {case['model']}")
def test_a_configuration_makes_devices(case: dict[str, Any]) -> None:
    config = MigManagerConfig(data={"version": "v1", "mig-configs": case.get("declared", {})})
    spec = MigManagerSpec(image=Image(), config=config)
    geometry = geometry_of(case["config"], spec, find_layout(case["model"]), case["count"])
    if case["offers"] is None:
        assert geometry is None
        return
    assert geometry is not None
    assert {strategy: offered_devices(geometry, strategy) for strategy in case["offers"]} == case["offers"]


def test_every_gpu_can_have_its_own_configurations() -> None:
    for layout in layouts():
        for name, instances in layout.configurations.items():
            assert layout_problem([instances], layout) == "", name


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_profiles_are_those_that_a_gpu_has_listed(file: Path) -> None:
    layout = find_layout(file.stem)
    assert layout
    assert layout.profiles == instance_profiles(file.read_text())
