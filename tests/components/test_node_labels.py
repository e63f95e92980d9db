"""Labels of GPU nodes. Those of a usual fleet, and of a host with a driver of its own, are golden files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired, labels
from gpu_provision.components.node_labels import OPERANDS
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Inventory, Node
from tests.components import builders

DEPLOY = {f"nvidia.com/gpu.deploy.{operand}" for operand in OPERANDS}
SEEN, SEEN_WITHOUT_GPU = builders.nfd_labels(), builders.nfd_labels(gpu=False)
OWN = {labels.DEPLOY_DRIVER: "pre-installed", labels.HOST_DRIVER: "550.90.07"}
EMPTY = builders.inventory(nodes=())


def labels_of(
    live: dict[str, str] | None = None, inventory: Inventory | None = None, name: str = "t4-1", **facts: Any
) -> dict[str, Any]:
    """Return the labels that a node of the cluster gets."""
    known = ClusterFacts(nodes=(builders.node(name, labels=live or {}),), **facts)
    manifests = desired(builders.context(inventory, known))["node_labels"]
    return next((item["metadata"]["labels"] for item in manifests if item["metadata"]["name"] == name), {})


def with_auto(live: dict[str, str], host_driver: str | None) -> dict[str, Any]:
    """Return what t4-1 gets with ``driver.enabled: auto``, and what was read of its host."""
    read = {} if host_driver is None else {"t4-1": host_driver}
    return labels_of({**SEEN, **live}, builders.with_spec("driver", prefer_host=True), host_drivers=read)


def test_before_nfd_has_spoken_the_declared_gpu_counts() -> None:
    """The run waits for NFD before it writes; the plan must not say the opposite meanwhile."""
    assert labels_of() == labels_of(SEEN)


@pytest.mark.parametrize(
    ("live", "host_driver", "expected"),
    [
        pytest.param(
            {labels.DEPLOY_DRIVER: "true", labels.DRIVER_GROUP: "ubuntu22.04"},
            "550.90.07",
            {labels.DEPLOY_DRIVER: "pre-installed", labels.DRIVER_GROUP: None, labels.HOST_DRIVER: "550.90.07"},
            id="to its own driver: our label is taken back",
        ),
        pytest.param(
            OWN,
            "",
            {labels.DEPLOY_DRIVER: "true", labels.DRIVER_GROUP: "ubuntu22.04", labels.HOST_DRIVER: None},
            id="and back",
        ),
        pytest.param(OWN, None, {labels.HOST_DRIVER: "550.90.07"}, id="unread: --cluster-only changes nothing"),
        pytest.param({labels.DEPLOY_DRIVER: "false"}, "550.90.07", {labels.HOST_DRIVER: "550.90.07"}, id="kept away"),
        pytest.param({labels.DEPLOY_DRIVER: "false"}, "", {labels.DRIVER_GROUP: "ubuntu22.04"}, id="kept away, bare"),
    ],
)
def test_with_auto_a_nodes_labels_follow_its_driver(
    live: dict[str, str], host_driver: str | None, expected: dict[str, Any]
) -> None:
    """``false`` is the user's, whatever the host has."""
    found = with_auto(live, host_driver)
    about_drivers = (labels.DEPLOY_DRIVER, labels.DRIVER_GROUP, labels.HOST_DRIVER)
    assert {key: found[key] for key in about_drivers if key in found} == expected


@pytest.mark.parametrize(
    ("value", "written"),
    [("false", None), ("pre-installed", None), ("paused-for-driver-upgrade", None), ("paused-x", None), ("", "true")],
)
def test_another_writers_value_is_respected(value: str, written: str | None) -> None:
    """It may change between reading and writing. An empty value says nothing, as in the reference."""
    found = labels_of({**SEEN, labels.DEPLOY_DRIVER: value})
    assert found.get(labels.DEPLOY_DRIVER) == written
    assert found["nvidia.com/gpu.deploy.dcgm"] == "true"


@pytest.mark.parametrize("declared", [False, True])
def test_operands_false_takes_all_deploy_labels_away(*, declared: bool) -> None:
    """The user's switch for a whole node, on the node itself or in the inventory; it stays."""
    live = {**SEEN, **dict.fromkeys(DEPLOY, "true"), "nvidia.com/gpu.deploy.mig-manager": "true"}
    switch = {labels.DEPLOY_OPERANDS: "false"}
    inventory = builders.inventory(nodes=(Node(name="t4-1", pool="t4", labels=switch if declared else {}),))
    found = labels_of(live if declared else live | switch, inventory)
    assert {key for key, value in found.items() if value is None} == DEPLOY | {"nvidia.com/gpu.deploy.mig-manager"}
    assert found.get(labels.DEPLOY_OPERANDS) == ("false" if declared else None)
    assert found[labels.GPU_PRESENT] == "true"


def test_the_inventorys_own_labels_outweigh_ours() -> None:
    """A pool or a node can switch a single operand off."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], labels={"tier": "a", "zone": "pool"})}
    nodes = (Node(name="t4-1", pool="t4", labels={"zone": "node", "nvidia.com/gpu.deploy.dcgm": "false"}),)
    found = labels_of(SEEN, builders.inventory(pools=pools, nodes=nodes))
    assert (found["tier"], found["zone"], found["nvidia.com/gpu.deploy.dcgm"]) == ("a", "node", "false")


def test_a_gpu_that_is_gone_takes_its_labels_along() -> None:
    """NFD has looked and sees none; the node remains ours, so that its labels can be taken back later."""
    ours = {labels.GPU_PRESENT: "true", labels.DEPLOY_DRIVER: "true", labels.DRIVER_GROUP: "ubuntu22.04"}
    assert labels_of({**SEEN_WITHOUT_GPU, **ours}) == {
        labels.GPU_PRESENT: "false",
        labels.DEPLOY_DRIVER: None,
        labels.DRIVER_GROUP: None,
        labels.INVENTORY: "sandbox",
    }


def test_a_node_without_a_gpu_gets_its_pools_labels_only() -> None:
    pools = {**builders.POOLS, "cpu": replace(builders.POOLS["cpu"], labels={"tier": "web"})}
    assert labels_of(SEEN_WITHOUT_GPU, builders.inventory(pools=pools), "cpu-1") == {"tier": "web"}
    assert labels_of(SEEN_WITHOUT_GPU, name="cpu-1") == {}


def test_a_node_that_left_loses_what_the_inventory_gave_it() -> None:
    """The user's own switches stay, and a node of another inventory is left alone: two teams may share a cluster."""
    live = {**SEEN, **labels_of(), "nvidia.com/gpu.deploy.dcgm": "false", "mine": "x"}
    found = labels_of(live, EMPTY)
    assert set(found.values()) == {None}
    assert set(found) == set(labels_of()) - {"nvidia.com/gpu.deploy.dcgm"}
    assert labels_of({**live, labels.INVENTORY: "others"}, name="stranger") == {}


def test_a_node_that_left_loses_the_labels_of_its_driver() -> None:
    """They were ours, which the version shows; those of a driver manager stay."""
    ours = labels_of({**SEEN, labels.INVENTORY: "sandbox", **OWN}, EMPTY)
    assert {key: ours[key] for key in OWN} == dict.fromkeys(OWN)
    managers = {**SEEN, labels.INVENTORY: "sandbox", labels.DEPLOY_DRIVER: "pre-installed"}
    assert labels.DEPLOY_DRIVER not in labels_of(managers, EMPTY)


def test_without_a_driver_of_the_stack_there_is_no_driver_group() -> None:
    """The label goes when the driver is switched off."""
    off = builders.with_spec("driver", enabled=False)
    assert labels_of({**SEEN, labels.DRIVER_GROUP: "ubuntu22.04"}, off)[labels.DRIVER_GROUP] is None
    assert labels.DRIVER_GROUP not in labels_of({}, off)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("feature.node.kubernetes.io/pci-10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-0302_10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-0300_10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-10de.present", "false", False),
        ("feature.node.kubernetes.io/pci-8086.present", "true", False),
    ],
)
def test_a_gpu_is_seen_by_any_of_nfds_labels(key: str, value: str, *, expected: bool) -> None:
    """Whichever form the cluster's own NFD writes."""
    assert labels.has_gpu({key: value}) is expected
    assert labels.has_gpu(builders.node("n", labels={key: value})) is expected
    assert labels.nfd_has_spoken({key: value})
