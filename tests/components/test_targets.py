"""Whose driver a node has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import problems as all_problems
from gpu_provision.components.labels import DRIVER_GROUP, INVENTORY, NFD_KERNEL, NFD_OS_ID, NFD_OS_VERSION, WORKLOAD
from gpu_provision.components.targets import (
    choose_driver,
    context,
    dns_label,
    driver_group,
    observed_kernel,
    problems,
    targets,
    unassigned_nodes,
)
from gpu_provision.hosts.facts.gpus import Driver
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.model.cluster import ClusterFacts, DriverBasis, DriverChoice, NodeFacts
from gpu_provision.model.findings import Severity
from gpu_provision.model.inventory import Gpu, Inventory, NodePool, OperatingSystem
from gpu_provision.model.openshift import OpenShiftFacts
from tests import data_file
from tests.components import builders

CASES: dict[str, Any] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
DECLARED = {
    "true": builders.DRIVER,
    "false": replace(builders.DRIVER, enabled=False),
    "auto": replace(builders.DRIVER, prefer_host=True),
}


@pytest.mark.parametrize(("declared", "host", "labels", "expected"), CASES["choices"])
def test_inventory_host_and_labels_decide_together(declared: str, host: str, labels: str, expected: str) -> None:
    """``driver.enabled`` first, then the host as it was read, then what is written on the node."""
    facts = CASES["hosts"][host]
    read = None if facts is None else HostFacts(driver=Driver(**facts)).driver.usable
    result = choose_driver(DECLARED[declared], read=read, labels=CASES["labels"][labels])
    whose = "host" if result.on_host else "container"
    assert " ".join(filter(None, (whose, result.version, result.basis))) == expected


def test_a_driver_without_a_version_is_one() -> None:
    """The module may not tell one; an empty version would mean that there is none."""
    assert Driver(module="/lib/modules/nvidia.ko").usable == "unknown"


CONTAINER = DriverChoice(on_host=False, basis=DriverBasis.DECLARED)
HOST = DriverChoice(on_host=True, basis=DriverBasis.DECLARED)
SELECTING = builders.pool("auto", gpu=Gpu("L40S", 2), node_selector={"fleet": "render"})


def auto_inventory() -> Inventory:
    return builders.with_spec("driver", prefer_host=True)


def with_pools(*pools: NodePool) -> Inventory:
    return builders.inventory(pools={**builders.POOLS, **{pool.name: pool for pool in pools}})


RENDER = {"fleet": "render"}
LISTED = {"h100-1": "h100", "t4-1": "t4", "t4-2": "t4"}


@pytest.mark.parametrize(
    ("chosen", "nodes", "expected"),
    [
        pytest.param(builders.inventory(), (), LISTED, id="offline: listed nodes of pools with a GPU, by name"),
        pytest.param(
            with_pools(SELECTING),
            (builders.node("new-1", labels={**RENDER, "zone": "a"}), builders.node("other-1", labels={"fleet": "web"})),
            {**LISTED, "new-1": "auto"},
            id="a node_selector adds nodes, such as autoscaled ones",
        ),
        pytest.param(builders.inventory(), (builders.node("new-1"),), LISTED, id="no selector selects nothing"),
        pytest.param(
            with_pools(SELECTING), (builders.node("cpu-1", labels=RENDER),), LISTED, id="the list outweighs a selector"
        ),
    ],
)
def test_targets_are_listed_or_selected(
    chosen: Inventory, nodes: tuple[NodeFacts, ...], expected: dict[str, str]
) -> None:
    result = targets(chosen, ClusterFacts(nodes=nodes))
    assert {target.name: target.pool.name for target in result} == expected
    assert [target.name for target in result] == sorted(expected)
    assert [target.facts for target in result if target.name == "t4-2"] == [None], "also if the cluster lacks the node"


@pytest.mark.parametrize(("pools", "labels", "expected"), CASES["any GPUs"])
def test_a_pool_for_any_gpus_gets_what_no_other_pool_gets(
    pools: dict[str, Any], labels: dict[str, str], expected: str
) -> None:
    """Of two such pools the narrower one; a node that neither of two is narrower for is contested."""
    chosen = builders.inventory_with({"pools": pools})
    known = context(chosen, ClusterFacts(nodes=(builders.node("new-1", labels=labels),)))
    claimed = [target.pool.name for target in known.targets if target.name == "new-1"]
    assert " ".join([*claimed, *(finding.code for finding in problems(known))]) == expected


def test_a_node_that_two_pools_select_is_left_alone_and_reported() -> None:
    """Which one was meant is the user's to say."""
    inventory = with_pools(SELECTING, replace(SELECTING, name="rival"))
    facts = ClusterFacts(nodes=(builders.node("new-1", labels={"fleet": "render", **builders.nfd_labels()}),))
    known = context(inventory, facts)
    assert "new-1" not in {target.name for target in known.targets}
    (finding,) = problems(known)
    assert finding.code == "GP404"
    assert finding.severity is Severity.ERROR
    assert "auto, rival" in finding.what


@pytest.mark.parametrize(
    ("observed", "labels", "declared", "expected"),
    [
        (None, {}, None, None),
        (None, {}, builders.UBUNTU_22, builders.UBUNTU_22),
        (builders.UBUNTU_24, {}, builders.UBUNTU_22, builders.UBUNTU_24),
        (builders.UBUNTU_22, builders.nfd_labels(builders.UBUNTU_24), builders.UBUNTU_22, builders.UBUNTU_24),
        (builders.UBUNTU_22, {"feature.node.kubernetes.io/system-os_release.ID": "rhel"}, None, builders.UBUNTU_22),
    ],
)
def test_the_os_is_that_of_nfd_then_node_then_pool(
    observed: OperatingSystem | None,
    labels: dict[str, str],
    declared: OperatingSystem | None,
    expected: OperatingSystem | None,
) -> None:
    """A driver image for the wrong system never becomes ready, so who has looked is believed."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], os=declared)}
    facts = ClusterFacts(nodes=(builders.node("t4-1", observed, labels=labels),))
    result = {target.name: target.os for target in targets(builders.inventory(pools=pools), facts)}
    assert result["t4-1"] == expected


@pytest.mark.parametrize(("labels", "expected"), CASES["findings"])
def test_a_node_that_is_not_as_declared_is_reported(labels: dict[str, str], expected: str) -> None:
    """A run continues as the node's labels have it."""
    known = context(builders.inventory(), ClusterFacts(nodes=(builders.node("t4-1", labels=labels),)))
    (finding,) = problems(known)
    has_stack = any(target.facts for target in known.targets)
    assert f"{finding.code} {finding.severity} {finding.where} {has_stack}: {finding.what}" == expected


def test_an_unclaimed_gpu_node_is_left_and_named() -> None:
    """It may belong to another team."""
    facts = ClusterFacts(
        nodes=(builders.node("stranger", labels=builders.nfd_labels()), builders.node("plain", labels={}))
    )
    assert unassigned_nodes(builders.inventory(), facts) == ("stranger",)
    (finding,) = problems(context(builders.inventory(), facts))
    assert (finding.code, finding.severity) == ("GP405", Severity.WARNING)
    in_pool = ClusterFacts(nodes=(builders.node("cpu-1", labels=builders.nfd_labels()),))
    assert unassigned_nodes(builders.inventory(), in_pool) == (), "a pool without GPUs is an answer, too"
    left = builders.node("stranger", labels={**builders.nfd_labels(), INVENTORY: "sandbox"})
    facts = ClusterFacts(nodes=(left,))
    assert not problems(context(builders.inventory(), facts)), "it is not left alone: the stack leaves it"


def test_nodes_with_equal_driver_needs_share_a_group() -> None:
    """An upgrade changes a DaemonSet instead of replacing it."""
    newer = replace(builders.DRIVER, image=replace(builders.DRIVER.image, version="600.0"))
    plain, own = builders.POOLS["t4"], replace(builders.POOLS["t4"], driver=newer, overrides_driver=True)
    assert driver_group(plain, builders.UBUNTU_22, CONTAINER) == "ubuntu22.04"
    assert driver_group(own, builders.UBUNTU_22, CONTAINER) == "t4-ubuntu22.04"
    assert driver_group(plain, OperatingSystem("rhel", "9.4"), CONTAINER) == "rhel9"
    assert driver_group(plain, None, CONTAINER) == "", "no image fits an unknown system"
    assert driver_group(plain, builders.UBUNTU_22, HOST) == "", "it has a driver of its own"


def test_precompiled_drivers_have_a_group_for_each_kernel() -> None:
    """The node that boots another kernel needs another image."""
    pool = replace(builders.POOLS["t4"], driver=replace(builders.DRIVER, use_precompiled=True))
    rhel = OperatingSystem("rhel", "9.4")
    assert driver_group(pool, builders.UBUNTU_22, CONTAINER, "5.15.0-122-generic") == "ubuntu22.04-5.15.0-122-generic"
    assert driver_group(pool, rhel, CONTAINER, "5.14.0-427.el9_4.x86_64") == "rhel9-5.14.0-427.el9-4.x86-64"
    assert driver_group(pool, builders.UBUNTU_22, CONTAINER) == "", "no image fits an unknown kernel"
    assert driver_group(builders.POOLS["t4"], rhel, CONTAINER, "5.14.0") == "rhel9", "others are built for any"
    node = builders.node("t4-1", kernel="5.15.0-1-generic")
    assert observed_kernel(node) == "5.15.0-1-generic"
    assert observed_kernel(replace(node, labels={NFD_KERNEL: "6.8.0-2-generic"})) == "6.8.0-2-generic"


def test_a_version_is_kept_as_the_label_can_have_it() -> None:
    """Else a later run, which has only the label, would take it for another version, and validate again."""
    facts = replace(builders.fleet(), host_drivers={"t4-1": "550.90.07+git 1"})
    result = {target.name: target.driver.version for target in targets(auto_inventory(), facts)}
    assert result["t4-1"] == "550.90.07-git-1"


def test_nodes_whose_driver_is_a_guess_are_named() -> None:
    """They were not read, and have no label; offline there is no warning."""
    labelled = builders.node("t4-2", labels={DRIVER_GROUP: "ubuntu22.04"})
    facts = ClusterFacts(version="v1.34.0", nodes=(builders.node("t4-1"), labelled), host_drivers={"h100-1": ""})
    (finding,) = problems(context(auto_inventory(), facts))
    assert (finding.code, finding.where, finding.severity) == ("GP410", "Node t4-1", Severity.WARNING)
    assert problems(context(auto_inventory(), replace(facts, version=""))) == ()
    assert problems(context(builders.inventory(), facts)) == ()
    assert "--cluster-only" in finding.fix
    (on_openshift,) = problems(context(auto_inventory(), replace(facts, openshift=OpenShiftFacts())))
    assert "--cluster-only" not in on_openshift.fix, "no run reads a host there"


@pytest.mark.parametrize(
    ("text", "label"),
    [("ubuntu22.04", "ubuntu22.04"), ("My_Pool-rhel9", "my-pool-rhel9"), ("-a-", "a"), ("x" * 63, "x" * 63)],
)
def test_a_group_name_is_safe_as_a_label_and_in_a_name(text: str, label: str) -> None:
    """It is part of a DaemonSet's name; a label value has 63 characters."""
    assert dns_label(text) == label
    one, other = dns_label("p" * 70 + "a"), dns_label("p" * 70 + "b")
    assert max(len(one), len(other)) <= 63
    assert one != other


@pytest.mark.parametrize(
    ("code", "labels"),
    [
        ("GP401", {}),
        ("GP402", {NFD_OS_ID: "debian", NFD_OS_VERSION: "12"}),
        ("GP403", {NFD_OS_ID: "ubuntu", NFD_OS_VERSION: "24.04"}),
        ("GP410", {NFD_OS_ID: "ubuntu", NFD_OS_VERSION: "22.04"}),
        ("GP413", {NFD_OS_ID: "ubuntu", NFD_OS_VERSION: "22.04", WORKLOAD: "vm-vgpu"}),
    ],
)
def test_a_finding_about_a_pool_names_ten_of_its_nodes(code: str, labels: dict[str, str]) -> None:
    """One cause is one finding, however many nodes have it, and its length does not grow with them."""
    os = None if code == "GP401" else OperatingSystem("ubuntu", "22.04")
    pool = builders.pool("many", gpu=Gpu("T4", 1), os=os, node_selector={"many": "yes"})
    nodes = tuple(builders.node(f"n-{at:02}", None, labels={"many": "yes", **labels}) for at in range(47))
    inventory = replace(builders.with_spec("driver", prefer_host=code == "GP410"), nodes=(), pools={"many": pool})
    inventory = replace(inventory, pools={"many": replace(pool, driver=inventory.specs.driver)})
    known = context(inventory, ClusterFacts(version="v1.34.0", nodes=nodes))
    (finding,) = (each for each in all_problems(known) if each.code == code)
    assert finding.where.startswith("Nodes n-00, n-01, ")
    assert finding.where.endswith("n-09 and 37 more")
    assert not {"n-10", "n-46"} & set(str(finding).replace(",", " ").split())
