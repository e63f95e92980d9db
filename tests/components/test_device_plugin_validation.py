"""The pods that ask for a GPU: what they are, and when another one is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import render_manifests
from gpu_provision.components.device_plugin_validation import pod_name
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Inventory
from tests.components import builders


def pods(inventory: Inventory | None = None, facts: ClusterFacts | None = None) -> dict[str, Any]:
    manifests = render_manifests(builders.context(inventory, facts or builders.fleet())).get(
        "device_plugin_validation", []
    )
    return {node_of(item): item for item in manifests}


def node_of(pod: dict[str, Any]) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (field,) = term["matchFields"]
    assert (field["key"], field["operator"]) == ("metadata.name", "In")
    (name,) = field["values"]
    return str(name)


def test_a_long_node_name_gives_way_to_its_digest() -> None:
    """The name of a pod has 253 characters."""
    one, other = (pod_name("n" * 240 + end, "01234567") for end in "ab")
    assert len(one) <= 253
    assert one != other
    assert pod_name("host.example.org", "01234567") == "nvidia-device-plugin-validation-host.example.org-01234567"


@pytest.mark.parametrize(
    ("inventory", "node", "is_repeated"),
    [
        ({"driver": {"version": "580.126.20"}}, {}, True),
        ({"toolkit": {"version": "v1.19.0"}}, {}, True),
        ({"validator": {"version": "v25.10.1"}}, {}, True),
        ({"device_plugin": {"version": "v0.19.3"}}, {}, True),
        ({"pools": {"t4": {"gpu": {"count": 2}}}}, {}, True),
        ({"device_plugin": {"config": {"default": "a", "data": {"a": {"version": "v1"}}}}}, {}, True),
        ({"device_plugin": {"config": {"data": {"a": {"version": "v1"}}}}}, {}, False),  # no node chooses it
        ({"device_plugin": {"config_name": "mine"}}, {}, False),  # pods restart
        ({"dcgm_exporter": {"version": "4.5.2-4.8.1-distroless"}}, {}, False),
        ({}, {"uid": "another", "boot_id": "another"}, False),  # the verdict tells, see test_validation
        ({}, {"kernel": "another"}, False),
    ],
)
def test_a_validation_is_repeated_when_its_content_changes(inventory: Any, node: Any, *, is_repeated: bool) -> None:
    """And only then, so that a run without changes runs nothing. Nodes with the startup taint are validated alike."""
    changes = {**inventory, "startup_taint": {"enabled": True}}
    before, after = (builders.inventory_with({"startup_taint": {"enabled": True}}), builders.inventory_with(changes))
    facts = builders.observed_facts({"nodes": {"t4-1": node}})
    for result in (pods, contents):
        assert (result(before)["t4-1"] != result(after, facts)["t4-1"]) == is_repeated


def contents(inventory: Inventory, facts: ClusterFacts | None = None) -> dict[str, Any]:
    """Return what each node says of its validation."""
    result = render_manifests(builders.context(inventory, facts or builders.fleet()))["startup_taint"]
    return {item["metadata"]["name"]: item["metadata"]["labels"] for item in result}


@pytest.mark.parametrize(
    ("labels", "is_validated"),
    [
        ({"nvidia.com/gpu.deploy.operands": "false"}, False),
        ({"nvidia.com/gpu.deploy.container-toolkit": "false"}, False),
        ({"nvidia.com/gpu.deploy.device-plugin": "false"}, False),
        ({"nvidia.com/gpu.deploy.driver": "pre-installed"}, True),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, True),
    ],
)
def test_a_node_that_keeps_the_operands_off_is_not_validated(labels: dict[str, str], *, is_validated: bool) -> None:
    """It could never pass, nor can one whose GPU is gone; a pause ends."""
    first, *others = builders.fleet().nodes
    facts = ClusterFacts(nodes=(replace(first, labels={**first.labels, **labels}), *others))
    assert ("t4-1" in pods(None, facts)) == is_validated
    nodes = (replace(builders.NODES[0], labels=labels), *builders.NODES[1:])
    assert ("t4-1" in pods(builders.inventory(nodes=nodes))) == is_validated
    gone = {**first.labels, **labels, builders.NFD_GPU[0]: "false"}
    assert "t4-1" not in pods(None, ClusterFacts(nodes=(replace(first, labels=gone), *others)))
