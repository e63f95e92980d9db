"""Which nodes an inventory looks after."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest

from gpu_provision.components.labels import DRIVER_GROUP, INVENTORY
from gpu_provision.components.targets import context, dns_label, driver_group, problems, targets, unclaimed
from gpu_provision.model.cluster import ClusterFacts, DriverBasis, DriverChoice
from gpu_provision.model.findings import Severity
from gpu_provision.model.inventory import Gpu, Inventory, OperatingSystem

CONTAINER = DriverChoice(on_host=False, basis=DriverBasis.DECLARED)
HOST = DriverChoice(on_host=True, basis=DriverBasis.DECLARED)
SELECTING = builders.pool("auto", gpu=Gpu("L40S", 2), node_selector={"fleet": "render"})


def auto() -> Inventory:
    """Return the default inventory with ``driver.enabled: auto``."""
    return builders.with_spec("driver", prefer_host=True)


def selecting(*pools: object) -> object:
    """Return the default inventory with further pools."""
    return builders.inventory(pools={**builders.POOLS, **{pool.name: pool for pool in pools}})  # type: ignore[attr-defined]


def test_offline_the_targets_are_the_listed_gpu_nodes_sorted_by_name() -> None:
    """Nodes of pools without a GPU are none."""
    found = targets(builders.inventory(), ClusterFacts())
    assert [target.name for target in found] == ["h100-1", "t4-1", "t4-2"]
    assert all(target.facts is None for target in found)


def test_a_listed_node_that_the_cluster_lacks_is_still_a_target() -> None:
    """The plan then says that it is missing."""
    facts = ClusterFacts(nodes=(builders.node("t4-1"),))
    found = {target.name: target.facts for target in targets(builders.inventory(), facts)}
    assert found["t4-1"] is not None
    assert found["t4-2"] is None


def test_a_node_selector_adds_nodes_of_the_cluster() -> None:
    """Autoscaled nodes have no names to list."""
    facts = ClusterFacts(
        nodes=(
            builders.node("new-1", labels={"fleet": "render", "zone": "a"}),
            builders.node("other-1", labels={"fleet": "web"}),
        )
    )
    found = {target.name: target.pool.name for target in targets(selecting(SELECTING), facts)}
    assert found == {"h100-1": "h100", "t4-1": "t4", "t4-2": "t4", "new-1": "auto"}


def test_a_pool_without_a_selector_selects_nothing() -> None:
    """An empty selector would otherwise match every node."""
    facts = ClusterFacts(nodes=(builders.node("stranger"),))
    assert "stranger" not in {target.name for target in targets(builders.inventory(), facts)}


def test_the_list_of_nodes_outweighs_a_selector() -> None:
    """What is said of one node counts more than what is said of many."""
    facts = ClusterFacts(nodes=(builders.node("cpu-1", labels={"fleet": "render"}),))
    assert "cpu-1" not in {target.name for target in targets(selecting(SELECTING), facts)}


def test_a_node_that_two_pools_select_is_left_alone_and_reported() -> None:
    """Which one was meant is the user's to say."""
    inventory = selecting(SELECTING, replace(SELECTING, name="rival"))
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
def test_the_operating_system_is_nfds_word_then_the_nodes_then_the_pools(
    observed: OperatingSystem | None,
    labels: dict[str, str],
    declared: OperatingSystem | None,
    expected: OperatingSystem | None,
) -> None:
    """A driver image for the wrong system never becomes ready, so who has looked is believed."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], os=declared)}
    facts = ClusterFacts(nodes=(builders.node("t4-1", observed, labels=labels),))
    found = {target.name: target.os for target in targets(builders.inventory(pools=pools), facts)}
    assert found["t4-1"] == expected


def test_a_node_that_runs_another_system_than_declared_is_reported() -> None:
    """The run goes on with the node's own word."""
    facts = ClusterFacts(nodes=(builders.node("t4-1", builders.UBUNTU_24),))
    (finding,) = problems(context(builders.inventory(), facts))
    assert (finding.code, finding.severity) == ("GP403", Severity.WARNING)
    assert finding.where == "Node t4-1"
    assert "the node runs ubuntu24.04" in finding.what


def test_a_gpu_node_that_nobody_claims_is_left_alone_and_named() -> None:
    """It may belong to somebody else."""
    facts = ClusterFacts(
        nodes=(builders.node("stranger", labels=builders.nfd_labels()), builders.node("plain", labels={}))
    )
    assert unclaimed(builders.inventory(), facts) == ("stranger",)
    (finding,) = problems(context(builders.inventory(), facts))
    assert (finding.code, finding.severity) == ("GP405", Severity.WARNING)
    left = builders.node("stranger", labels={**builders.nfd_labels(), INVENTORY: "sandbox"})
    facts = ClusterFacts(nodes=(left,))
    assert not problems(context(builders.inventory(), facts)), "it is not left alone: the stack leaves it"


def test_a_gpu_in_a_pool_without_gpus_is_claimed() -> None:
    """A pool that says no GPU component is an answer, too."""
    facts = ClusterFacts(nodes=(builders.node("cpu-1", labels=builders.nfd_labels()),))
    assert unclaimed(builders.inventory(), facts) == ()


def test_nodes_with_equal_driver_needs_share_a_group_whose_name_holds_no_version() -> None:
    """An upgrade changes a DaemonSet instead of replacing it."""
    newer = replace(builders.DRIVER, image=replace(builders.DRIVER.image, version="600.0"))
    plain, own = builders.POOLS["t4"], replace(builders.POOLS["t4"], driver=newer, overrides_driver=True)
    assert driver_group(plain, builders.UBUNTU_22, CONTAINER) == "ubuntu22.04"
    assert driver_group(own, builders.UBUNTU_22, CONTAINER) == "t4-ubuntu22.04"
    assert driver_group(plain, OperatingSystem("rhel", "9.4"), CONTAINER) == "rhel9"


def test_a_node_that_no_driver_daemonset_can_serve_is_in_no_group() -> None:
    """Its system is unknown, or it has a driver of its own."""
    assert driver_group(builders.POOLS["t4"], None, CONTAINER) == ""
    assert driver_group(builders.POOLS["t4"], builders.UBUNTU_22, HOST) == ""


def test_with_auto_nodes_of_one_pool_differ_by_what_their_hosts_have() -> None:
    """A node that runs its own driver is in no group; the other keeps the group that it would have anyway."""
    facts = replace(builders.fleet(), host_drivers={"t4-1": "550.90.07", "t4-2": ""})
    found = {target.name: target for target in targets(auto(), facts)}
    assert (found["t4-1"].driver.version, found["t4-1"].driver_group) == ("550.90.07", "")
    assert (found["t4-2"].driver.on_host, found["t4-2"].driver_group) == (False, "ubuntu22.04")


def test_a_version_is_kept_as_the_label_can_have_it() -> None:
    """Else a later run, which has only the label, would take it for another version, and validate again."""
    facts = replace(builders.fleet(), host_drivers={"t4-1": "550.90.07+git 1"})
    found = {target.name: target.driver.version for target in targets(auto(), facts)}
    assert found["t4-1"] == "550.90.07-git-1"


def test_nodes_whose_driver_is_a_guess_are_named() -> None:
    """Nobody has looked at them, and nothing is written on them; offline nobody can look."""
    labelled = builders.node("t4-2", labels={DRIVER_GROUP: "ubuntu22.04"})
    facts = ClusterFacts(version="v1.34.0", nodes=(builders.node("t4-1"), labelled), host_drivers={"h100-1": ""})
    (finding,) = problems(context(auto(), facts))
    assert (finding.code, finding.where, finding.severity) == ("GP410", "Node t4-1", Severity.WARNING)
    assert problems(context(auto(), replace(facts, version=""))) == ()
    assert problems(context(builders.inventory(), facts)) == ()


@pytest.mark.parametrize(
    ("text", "label"),
    [("ubuntu22.04", "ubuntu22.04"), ("My_Pool-rhel9", "my-pool-rhel9"), ("-a-", "a"), ("x" * 63, "x" * 63)],
)
def test_a_group_name_is_safe_as_a_label_and_in_a_name(text: str, label: str) -> None:
    """It is part of a DaemonSet's name."""
    assert dns_label(text) == label


def test_long_group_names_stay_short_and_apart() -> None:
    """A label value has 63 characters."""
    one, other = dns_label("p" * 70 + "a"), dns_label("p" * 70 + "b")
    assert len(one) <= 63
    assert one != other
