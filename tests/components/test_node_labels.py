"""Labels of GPU nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired, labels
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Inventory, Node
from tests.components import builders

OPERANDS = {
    "driver",
    "gpu-feature-discovery",
    "container-toolkit",
    "device-plugin",
    "dcgm",
    "dcgm-exporter",
    "node-status-exporter",
    "operator-validator",
    "client",
}
DEPLOY = {f"nvidia.com/gpu.deploy.{operand}" for operand in OPERANDS}


def labels_of(name: str, live: dict[str, str] | None = None, inventory: Inventory | None = None) -> dict[str, Any]:
    """Return the labels that a node of the cluster is to get."""
    facts = ClusterFacts(nodes=(builders.node(name, labels=live or {}),))
    manifests = desired(builders.context(inventory, facts))["node_labels"]
    found = [item["metadata"]["labels"] for item in manifests if item["metadata"]["name"] == name]
    return found[0] if found else {}


def test_before_nfd_has_spoken_the_declared_gpu_is_believed_in() -> None:
    """The run waits for NFD before it writes; the plan must not say the opposite meanwhile."""
    assert labels_of("t4-1") == labels_of("t4-1", builders.nfd_labels())


def with_auto(live: dict[str, str], host_driver: str | None) -> dict[str, Any]:
    """Return what t4-1 is to get with ``driver.enabled: auto``, and what was read of its host."""
    read = {} if host_driver is None else {"t4-1": host_driver}
    facts = ClusterFacts(nodes=(builders.node("t4-1", labels=live),), host_drivers=read)
    known = builders.context(builders.with_spec("driver", prefer_host=True), facts)
    (found,) = (item for item in desired(known)["node_labels"] if item["metadata"]["name"] == "t4-1")
    return {**found["metadata"]["labels"]}


def test_a_node_goes_over_to_its_own_driver_and_back() -> None:
    """Each time the other side's labels are taken back."""
    in_group = {**builders.nfd_labels(), "nvidia.com/gpu.deploy.driver": "true", labels.DRIVER_GROUP: "ubuntu22.04"}
    assert with_auto(in_group, "550.90.07")[labels.DRIVER_GROUP] is None
    own = {**builders.nfd_labels(), labels.DEPLOY_DRIVER: "pre-installed", labels.HOST_DRIVER: "550.90.07"}
    back = with_auto(own, "")
    assert (back[labels.DEPLOY_DRIVER], back[labels.HOST_DRIVER]) == ("true", None)
    assert back[labels.DRIVER_GROUP] == "ubuntu22.04"


def test_without_a_reading_the_labels_stay_as_they_are() -> None:
    """``--cluster-only`` after a whole run changes nothing."""
    own = {**builders.nfd_labels(), labels.DEPLOY_DRIVER: "pre-installed", labels.HOST_DRIVER: "550.90.07"}
    found = with_auto(own, None)
    assert found[labels.HOST_DRIVER] == "550.90.07"
    assert labels.DEPLOY_DRIVER not in found
    assert labels.DRIVER_GROUP not in found


def test_a_driver_that_the_user_keeps_away_stays_away() -> None:
    """``false`` is the user's, whatever the host has."""
    live = {**builders.nfd_labels(), labels.DEPLOY_DRIVER: "false"}
    assert labels.DEPLOY_DRIVER not in with_auto(live, "550.90.07")
    assert labels.DEPLOY_DRIVER not in with_auto(live, "")


@pytest.mark.parametrize("value", ["false", "pre-installed", "paused-for-driver-upgrade", "paused-for-mig-change"])
def test_what_somebody_else_wrote_is_respected(value: str) -> None:
    """Not even repeated: it may change between our reading and our writing."""
    found = labels_of("t4-1", {**builders.nfd_labels(), "nvidia.com/gpu.deploy.driver": value})
    assert "nvidia.com/gpu.deploy.driver" not in found
    assert found["nvidia.com/gpu.deploy.dcgm"] == "true"


def test_an_empty_value_is_nobodys_word() -> None:
    """As in the reference."""
    found = labels_of("t4-1", {**builders.nfd_labels(), "nvidia.com/gpu.deploy.driver": ""})
    assert found["nvidia.com/gpu.deploy.driver"] == "true"


@pytest.mark.parametrize("declared", [False, True])
def test_operands_false_takes_all_deploy_labels_away(declared: bool) -> None:  # noqa: FBT001 -- a parameter
    """The user's switch for a whole node, on the node itself or in the inventory; it stays."""
    live = {**builders.nfd_labels(), **dict.fromkeys(DEPLOY, "true"), "nvidia.com/gpu.deploy.mig-manager": "true"}
    switch = {"nvidia.com/gpu.deploy.operands": "false"}
    inventory = builders.inventory(nodes=(Node(name="t4-1", pool="t4", labels=switch if declared else {}),))
    found = labels_of("t4-1", live if declared else live | switch, inventory)
    assert {key for key, value in found.items() if value is None} == DEPLOY | {"nvidia.com/gpu.deploy.mig-manager"}
    assert found.get("nvidia.com/gpu.deploy.operands") == ("false" if declared else None)
    assert found["nvidia.com/gpu.present"] == "true"


def test_the_inventorys_own_labels_outweigh_ours() -> None:
    """A pool or a node can switch a single operand off."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], labels={"tier": "a", "zone": "pool"})}
    nodes = (Node(name="t4-1", pool="t4", labels={"zone": "node", "nvidia.com/gpu.deploy.dcgm": "false"}),)
    found = labels_of("t4-1", builders.nfd_labels(), builders.inventory(pools=pools, nodes=nodes))
    assert (found["tier"], found["zone"], found["nvidia.com/gpu.deploy.dcgm"]) == ("a", "node", "false")


def test_a_gpu_that_is_gone_takes_its_labels_along() -> None:
    """NFD has looked and sees none; the node remains ours, so that its labels can be taken back later."""
    live = {
        **builders.nfd_labels(gpu=False),
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.deploy.driver": "true",
        "gpu-provision.io/driver": "ubuntu22.04",
    }
    assert labels_of("t4-1", live) == {
        "nvidia.com/gpu.present": "false",
        "nvidia.com/gpu.deploy.driver": None,
        "gpu-provision.io/driver": None,
        "gpu-provision.io/inventory": "sandbox",
    }


def test_a_node_without_a_gpu_gets_its_pools_labels_only() -> None:
    """And nothing at all if there are none."""
    pools = {**builders.POOLS, "cpu": replace(builders.POOLS["cpu"], labels={"tier": "web"})}
    assert labels_of("cpu-1", builders.nfd_labels(gpu=False), builders.inventory(pools=pools)) == {"tier": "web"}
    assert labels_of("cpu-1", builders.nfd_labels(gpu=False)) == {}


def test_a_node_that_left_loses_what_the_inventory_gave_it() -> None:
    """Operands leave it; the user's own switches stay."""
    live = {**builders.nfd_labels(), **labels_of("t4-1"), "nvidia.com/gpu.deploy.dcgm": "false", "mine": "x"}
    found = labels_of("t4-1", live, builders.inventory(nodes=()))
    assert set(found.values()) == {None}
    assert set(found) == set(labels_of("t4-1")) - {"nvidia.com/gpu.deploy.dcgm"}


def test_a_node_that_left_loses_the_labels_of_its_driver() -> None:
    """It was ours, which the version beside it tells; that of a driver manager stays."""
    mine = {labels.INVENTORY: "sandbox", labels.DEPLOY_DRIVER: "pre-installed"}
    empty = builders.inventory(nodes=())
    ours = labels_of("t4-1", {**builders.nfd_labels(), **mine, labels.HOST_DRIVER: "550.90.07"}, empty)
    assert {key: ours[key] for key in (labels.DEPLOY_DRIVER, labels.HOST_DRIVER)} == {
        labels.DEPLOY_DRIVER: None,
        labels.HOST_DRIVER: None,
    }
    assert labels.DEPLOY_DRIVER not in labels_of("t4-1", {**builders.nfd_labels(), **mine}, empty)


def test_a_node_of_another_inventory_is_left_alone() -> None:
    """Two teams may share a cluster."""
    live = {**builders.nfd_labels(), **labels_of("t4-1"), labels.INVENTORY: "others"}
    assert labels_of("stranger", live) == {}


def test_a_node_without_a_driver_of_ours_has_no_driver_group() -> None:
    """The label goes when the driver is switched off."""
    live = {**builders.nfd_labels(), "gpu-provision.io/driver": "ubuntu22.04"}
    found = labels_of("t4-1", live, builders.with_spec("driver", enabled=False))
    assert found["gpu-provision.io/driver"] is None
    assert "gpu-provision.io/driver" not in labels_of("t4-1", {}, builders.with_spec("driver", enabled=False))


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
def test_a_gpu_is_seen_by_any_of_nfds_labels(key: str, value: str, expected: bool) -> None:  # noqa: FBT001 -- a parameter
    """Whichever form the cluster's own NFD writes."""
    assert labels.has_gpu({key: value}) is expected
    assert labels.has_gpu(builders.node("n", labels={key: value})) is expected
    assert labels.nfd_has_spoken({key: value})
