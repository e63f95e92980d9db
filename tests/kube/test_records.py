"""What has passed is known to every machine, and a damaged record costs no more than a repetition."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from gpu_provision.kube import records
from gpu_provision.kube.client import KubeClient
from gpu_provision.model.inventory import Inventory
from tests.components.builders import inventory

PASSED = {
    ("driver_validation", "t4-1"): "a1",
    ("device_plugin_validation", "t4-1"): "b2",
    ("driver_validation", "h100-1"): "c3",
}


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Inventory:
    """A stack of the test's own in the default namespace."""
    base = inventory()
    name = f"stack-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    return replace(base, name=name, cluster=replace(base.cluster, namespace="default"))


def test_what_is_written_is_read(cluster: KubeClient, stack: Inventory) -> None:
    assert records.read_validations(cluster, stack) == {}
    before = cluster.requests
    records.write_validations(cluster, stack, PASSED)
    assert cluster.requests == before + 1
    assert records.read_validations(cluster, stack) == PASSED
    records.write_validations(cluster, stack, {("driver_validation", "h100-1"): "c4"})
    assert records.read_validations(cluster, stack) == {("driver_validation", "h100-1"): "c4"}, "a node has left"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "7", '"text"'])
def test_a_damaged_entry_is_no_entry(cluster: KubeClient, stack: Inventory, damage: str) -> None:
    records.write_validations(cluster, stack, PASSED)
    manifest = records.validations_manifest(stack, {})
    cluster.apply({**manifest, "data": {"t4-1": damage}}, manager="other", take_back=True)
    assert records.read_validations(cluster, stack) == {("driver_validation", "h100-1"): "c3"}
