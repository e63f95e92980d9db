"""Nodes whose GPUs are for virtual machines: they get no stack, and their hosts are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.test_leaving_nodes import MARKS, pods_on, train, trained_on
from tests.scenarios.world import World

WORKLOAD = "nvidia.com/gpu.workload.config"
FOR_VMS = "its GPUs are for virtual machines now"
CHANGED = "etc/modules-load.d/gpu-provision.conf"


def give_to_vms(world: World, node: str, value: str | None = "vm-passthrough") -> None:
    world.api.label("node", node, labels={WORKLOAD: value})


def bind_to_vfio(world: SandboxWorld, node: str) -> Path:
    """Bind the GPUs of a host to vfio-pci, and return its root; the host exists since it was read."""
    root = world.folder / "sandboxes/fleet/hosts" / node
    for device in (root / "sys/bus/pci/devices").iterdir():
        if (device / "vendor").read_text().strip() == "0x10de":
            (device / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    return root


def test_a_node_given_to_virtual_machines_loses_its_stack(new_world: Callable[..., World]) -> None:
    """GPU pods are evicted within the rollout's limits, and the plan says why; without the label it gets it again."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    train(world, allowed=1)
    give_to_vms(world, "t4-1")
    plan = world.plan().out
    assert "removes the GPU stack from node t4-1: 6 pods deleted, in use by 1 GPU pod (default/train-" in plan
    assert f"{FOR_VMS}: t4-1" in plan
    assert "will evict default/train-" in plan
    assert "no longer in the inventory" not in plan
    assert FOR_VMS in {row["node"]: row["reason"] for row in world.status()["nodes"]}["t4-1"]
    run = world.apply("--cluster-only", check=True)
    assert "GP413" in run.text
    assert trained_on(world) == ["t4-2"]
    world.until(lambda: not pods_on(world, "t4-1"))
    assert {row["node"]: row["reason"] for row in world.status()["nodes"]}["t4-1"].startswith(
        "its GPUs are for virtual"
    )
    node = world.json("node", "t4-1")
    assert not MARKS & {*node["metadata"]["labels"], *node["metadata"].get("annotations", {})}
    assert not node["spec"].get("unschedulable")
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    world.api.delete("deployment", "train")
    give_to_vms(world, "t4-1", None)
    world.apply("--cluster-only", check=True)
    assert world.json("node", "t4-1")["status"]["allocatable"]["nvidia.com/gpu"] == "1"


def test_a_declared_label_for_virtual_machines_counts(new_world: Callable[..., World]) -> None:
    """The first run already installs no stack on the node; it writes the label."""
    world = new_world()
    world.settings_of_pool("h100", labels={WORKLOAD: "vm-vgpu"})
    world.apply("--cluster-only", check=True)
    assert world.json("node", "h100-1")["metadata"]["labels"][WORKLOAD] == "vm-vgpu"
    assert not pods_on(world, "h100-1")
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


@pytest.fixture
def passed_through(new_sandbox: Callable[..., SandboxWorld]) -> tuple[SandboxWorld, Path]:
    """A sandbox, and the root of a host whose GPUs vfio-pci holds."""
    world = new_sandbox()
    world.cli("plan", "--hosts-only", "-i", str(world.inventory), check=True)
    return world, bind_to_vfio(world, "h100-1")


def test_hosts_for_virtual_machines_are_left_alone(passed_through: tuple[SandboxWorld, Path]) -> None:
    """They are neither changed nor checked, and named once; the other nodes get hosts and stack."""
    world, root = passed_through
    give_to_vms(world, "h100-1")
    preflight = world.cli("preflight", "-i", str(world.inventory))
    assert (preflight.code, preflight.text.count("GP413"), "GP613" in preflight.text) == (0, 1, False), preflight.text
    run = world.apply(check=True)
    assert run.text.count("GP413") == 1
    assert "GP613" not in run.text
    assert not (root / CHANGED).exists()
    assert (root.parent / "t4-1" / CHANGED).exists()
    assert "everything is as declared" in world.cli("plan", "-i", str(world.inventory)).text
    assert not pods_on(world, "h100-1")
    verified = world.cli("verify", "-i", str(world.inventory))
    assert verified.code == 0, verified.text
    assert "its GPUs are for virtual machines" in verified.text


@pytest.mark.real  # for the time it takes
def test_hosts_for_vms_are_named_if_another_host_fails(passed_through: tuple[SandboxWorld, Path]) -> None:
    """The cluster phase, which names them otherwise, is held back."""
    world, root = passed_through
    give_to_vms(world, "h100-1")
    bind_to_vfio(world, "t4-1")
    run = world.apply()
    assert (run.code, run.text.count("GP413"), run.text.count("GP613")) == (1, 1, 1), run.text
    assert not (root / CHANGED).exists()


@pytest.mark.real  # for the time it takes
def test_stock_pyinfra_leaves_such_hosts_alone(passed_through: tuple[SandboxWorld, Path]) -> None:
    world, root = passed_through
    give_to_vms(world, "h100-1")
    run = world.pyinfra("-y", check=True)
    assert "the GPUs of its node are for virtual machines" in run.text
    assert not (root / CHANGED).exists()
    assert (root.parent / "t4-1" / CHANGED).exists()


@pytest.mark.real  # for the time it takes
def test_without_the_cluster_passthrough_is_a_warning(passed_through: tuple[SandboxWorld, Path]) -> None:
    """With the cluster and without the label it is an error, since the driver would find no GPU."""
    world, _ = passed_through
    alone = world.apply("--hosts-only", check=True)
    assert "warning: GP613" in alone.text
    assert f"{WORKLOAD}=vm-passthrough" in alone.text
    run = world.apply()
    assert run.code == 1
    assert "error: GP613" in run.text
