"""OpenShift: MachineConfigs carry host prerequisites, the Machine Config Operator reboots nodes, and drivers wait.

On the sandbox alone: its Machine Config Operator is a simulation, and docs/evidence.md says what is unproven.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.on_sandbox import SandboxWorld, sandbox_world

Make = Callable[..., SandboxWorld]

_ROLE = "machineconfiguration.openshift.io/role"
_GPU = {"model": "Tesla T4", "count": 1}
CONFIG, GPU_NODES = "99-gpu-gpu-provision", ("gpu-0", "gpu-1")
NODES: list[dict[str, Any]] = [
    {"name": "master-0", "roles": ["control-plane"]},
    {"name": "worker-0"},
    *(
        {"name": name, "gpu": _GPU, "host": {"nouveau": True}, "labels": {"node-role.kubernetes.io/gpu": ""}}
        for name in GPU_NODES
    ),
]
PREREQUISITES = {"kernel_arguments": ["intel_iommu=on"]}


@pytest.fixture
def new_openshift(tmp_path: Path) -> Iterator[Make]:
    """Opens a cluster with two GPU nodes in a MachineConfigPool of their own, and an inventory of these nodes."""
    with ExitStack() as opened:

        def open_world(
            roles: tuple[str, ...] = ("worker", "gpu"), *, timings: dict[str, float] | None = None, **pool: Any
        ) -> SandboxWorld:
            fleet: dict[str, Any] = {"nodes": NODES, "openshift": {"version": "4.18.13"}}
            world = opened.enter_context(sandbox_world(tmp_path, **fleet, **({"timings": timings} if timings else {})))
            world.submit(machine_pool(roles, **pool))
            world.until(lambda: pool_status(world).get("machineCount") == len(GPU_NODES))
            world.replace("pools", {"gpu": {"gpu": _GPU, "host_prerequisites": PREREQUISITES}})
            world.replace("nodes", [{"name": name, "pool": "gpu"} for name in GPU_NODES])
            world.settings(cluster={"platform": "openshift"})
            return world

        yield open_world


def machine_pool(roles: tuple[str, ...], **spec: Any) -> dict[str, Any]:
    selector = {"matchExpressions": [{"key": _ROLE, "operator": "In", "values": list(roles)}]}
    nodes = {"matchLabels": {"node-role.kubernetes.io/gpu": ""}}
    kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool"}
    return {
        **kind,
        "metadata": {"name": "gpu"},
        "spec": {"machineConfigSelector": selector, "nodeSelector": nodes, **spec},
    }


def pool_status(world: SandboxWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.json("machineconfigpool", "gpu").get("status") or {}
    return found


def _is_degraded(status: dict[str, Any]) -> bool:
    found = status.get("conditions", ())
    return any(each["type"].endswith("Degraded") and each["status"] == "True" for each in found)


def boots(world: SandboxWorld) -> dict[str, str]:
    return {node["metadata"]["name"]: world.boot(node["metadata"]["name"]) for node in world.json("nodes")["items"]}


def rebooted(world: SandboxWorld, before: dict[str, str]) -> set[str]:
    now = boots(world)
    return {name for name in now if now[name] != before[name]}


def pause(world: SandboxWorld, *, paused: bool) -> None:
    world.api.patch("machineconfigpool", "gpu", patch={"spec": {"paused": paused}})


def test_install_change_and_removal_reboot_the_pool_and_no_other(new_openshift: Make) -> None:
    world = new_openshift()
    before = boots(world)
    planned = world.plan().text
    assert f"+ MachineConfig {CONFIG}" in planned
    assert "will reboot 2 nodes of MachineConfigPool gpu, 1 at a time" in planned
    told = world.apply(check=True).text
    assert re.search(r"machine_config progressing: MachineConfigPool gpu (has|is about)", told)
    assert rebooted(world, before) == {*GPU_NODES}
    for name in GPU_NODES:  # the driver's pod began in the boot of the new configuration
        [pod] = [each for each in world.driver_pods() if each["spec"]["nodeName"] == name]
        ready = next(each for each in world.json("node", name)["status"]["conditions"] if each["type"] == "Ready")
        assert pod["metadata"]["creationTimestamp"] >= ready["lastTransitionTime"]
        assert all(not each.get("restartCount") for each in pod["status"]["containerStatuses"])
    installed = boots(world)
    again = world.apply("--json", check=True)
    assert (again.document["changed"], rebooted(world, installed)) == (0, set())
    assert {row["component"]: row["ready"] for row in world.status()["components"]}["machine_config"] == 2

    world.settings_of_pool("gpu", host_prerequisites={**PREREQUISITES, "sysctls": {"vm.max_map_count": "262144"}})
    assert "will reboot 2 nodes of MachineConfigPool gpu, 1 at a time" in world.plan().text
    world.apply(check=True)
    assert rebooted(world, installed) == {*GPU_NODES}
    [rendered] = {world.json("node", name)["metadata"]["annotations"][_CURRENT] for name in GPU_NODES}
    assert "vm.max_map_count" in str(world.json("machineconfig", rendered)["spec"])

    changed = boots(world)
    for options in (("--dry-run",), ("--yes",)):
        removed = world.cli("destroy", *options, "-i", str(world.inventory), check=not options[0].startswith("--dry"))
        assert "2 nodes of MachineConfigPool gpu, 1 at a time" in removed.text
    assert not world.api.exists("machineconfig", CONFIG)
    world.until(lambda: rebooted(world, changed) == {*GPU_NODES})


_CURRENT = "machineconfiguration.openshift.io/currentConfig"


@pytest.mark.parametrize(
    ("roles", "spec", "code", "words"),
    [
        (("worker", "gpu"), {"paused": True}, "GP437", "oc patch machineconfigpool gpu"),
        (("worker",), {}, "GP438", "add gpu to the values"),
    ],
    ids=["a paused pool", "a pool that selects another role"],
)
def test_a_pool_that_cannot_roll_is_found_before_anything_is_written(
    new_openshift: Make, roles: tuple[str, ...], spec: dict[str, Any], code: str, words: str
) -> None:
    world = new_openshift(roles, **spec)
    planned = world.plan().text
    assert code in planned
    assert words in " ".join(planned.split())
    refused = world.apply("--json")
    assert (refused.code != 0, [each["code"] for each in refused.document["errors"]]) == (True, [code])
    assert not world.writes()
    preflight = world.cli("preflight", "--json", "-i", str(world.inventory))
    assert code in preflight.text
    world.settings(openshift={"machine_config": False})
    assert code not in world.plan().text


@pytest.mark.real  # for the time it takes
def test_a_failed_node_fails_the_run_and_the_next_one_goes_on(new_openshift: Make) -> None:
    world = new_openshift()
    world.fault({"fault": "machine-config-fails", "node": "gpu-0", "message": "disk is full"})
    failed = world.apply("--json")
    assert failed.code != 0
    findings = {each["code"]: each for each in failed.document["errors"]}
    assert "disk is full" in str(findings["GP437"])
    assert "driver" in findings["GP437"]["consequence"]
    assert not world.driver_pods()
    world.fault()
    world.until(lambda: not _is_degraded(pool_status(world)))
    world.apply(check=True)


@pytest.mark.real  # for the time it takes
def test_a_run_that_is_killed_is_resumed(new_openshift: Make) -> None:
    """Its successor neither reboots a node twice nor starts a driver before the reboot."""
    world = new_openshift(timings={"speed": 5})
    before = boots(world)
    run = world.start(*world.apply_command, log=world.folder / "run.log")
    world.until(lambda: world.api.exists("machineconfig", CONFIG))
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert "machine_config" in world.plan().text
    world.apply(check=True)
    assert rebooted(world, before) == {*GPU_NODES}
    assert world.apply("--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_an_edit_is_drift_and_the_rights_of_rbac_undo_it(new_openshift: Make) -> None:
    world = new_openshift()
    world.give_rights("--destroy")
    rights = world.give_rights()
    world.apply(*rights, check=True)
    edited = {"spec": {"kernelArguments": ["quiet"]}}
    world.api.patch("machineconfig", CONFIG, patch=edited, manager="kubectl-edit")
    drift = world.cli("drift", "-i", str(world.inventory), *rights)
    assert CONFIG in drift.text
    assert "kubectl-edit" in drift.text
    world.apply(*rights, check=True)
    assert "intel_iommu=on" in world.json("machineconfig", CONFIG)["spec"]["kernelArguments"]
    world.cli("destroy", "--yes", "-i", str(world.inventory), *rights, check=True)
    assert not world.api.exists("machineconfig", CONFIG)


def test_hosts_are_left_alone(new_openshift: Make) -> None:
    """Where the inventory does not name the platform, the host phase refuses, and says how to."""
    world = new_openshift()
    world.settings(cluster={"platform": ""})
    world.edit(lambda text: text.replace("  platform: ''\n", ""))
    refused = world.apply("--json")
    [finding] = [each for each in refused.document["errors"] if each["code"] == "GP658"]
    assert "platform: openshift" in finding["fix"]
    assert not world.api.exists("machineconfig", CONFIG)
