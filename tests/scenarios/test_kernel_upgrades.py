"""An unattended upgrade brings a kernel without headers: held back, seen by drift, survived by a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.test_precompiled import boots
from tests.scenarios.test_rollouts import nodes, versions
from tests.scenarios.world import World

Make = Callable[..., World]
OLD, NEW = "580.126.20", "580.178.04"
KERNEL = "5.15.0-999-generic"
NO_HEADERS = {"fault": "driver-build-fails", "kernel": KERNEL, "message": "Could not resolve Linux kernel version"}
NO_IMAGE = {"fault": "image-pull-fails", "node": "t4-1", "image": KERNEL}
POLICY = {"max_parallel_upgrades": 1, "max_unavailable": "100%"}


def drift(world: World, *words: str) -> tuple[int, str]:
    found = world.cli("drift", "--detailed-exitcode", *words, "-i", str(world.inventory))
    return found.code, found.text


def broken(world: World) -> dict[str, str]:
    """Return the nodes that are not ready, with their reasons."""
    return {row["node"]: row["reason"] for row in world.status()["nodes"] if row["pool"] and row["state"] != "ready"}


def reboot_in_a_rollout(world: World, fault: dict[str, Any], hold: dict[str, Any]) -> str:
    """Boot t4-1 into the kernel once h100-1 is upgraded; return what the run prints, which fails.

    ``hold``: the fault that keeps t4-1 from being upgraded before.
    """
    world.fault({**hold, "node": "t4-1"})
    run = world.start(*world.apply_command, "--cluster-only")
    state = "nvidia.com/gpu-driver-upgrade-state"
    world.until(lambda: nodes(world)["h100-1"]["metadata"]["labels"].get(state) == "upgrade-done")
    boots(world, "t4-1", KERNEL, fault)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 1
    return str(out)


def test_drift_names_the_node_and_its_kernel(new_world: Make) -> None:
    """The next run says why the driver cannot be built; once the kernel has headers, a run makes the node ready."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    world.settings(driver={"timeout": 20})
    boots(world, "t4-2", KERNEL, NO_HEADERS)
    code, text = world.until(lambda: (found := drift(world, "--cluster-only"))[0] and found)
    assert code == 2
    assert (
        f"GP520 node t4-2: t4-2 has booted since its driver was validated, and is not ready; it runs kernel {KERNEL}"
        in text
    )
    assert "ready nodes of pool t4 run 5.15.0-122-generic" in text
    assert "hold_packages: true" in text
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "the driver cannot be built for the kernel that the node runs" in run.text
    assert broken(world).keys() == {"t4-2"}
    world.fault()
    world.settings(driver={"timeout": 300})
    world.apply("--cluster-only", check=True)
    assert drift(world, "--cluster-only")[0] == 0


@pytest.mark.real  # for the time it takes
def test_a_reboot_in_a_rollout_fails_one_node(new_world: Make) -> None:
    """The others finish, as the policy lets them; the next run finishes the node."""
    world = new_world(timings={"speed": 15})
    world.settings(driver={"version": OLD, "timeout": 40, "upgrade_policy": POLICY}, rollout={"stop_after_failures": 2})
    world.apply("--cluster-only", check=True)
    world.settings(driver={"version": NEW})
    out = reboot_in_a_rollout(world, NO_HEADERS, {"fault": "driver-slow", "seconds": 600})
    assert "the driver cannot be built for the kernel that the node runs" in out
    assert broken(world).keys() == {"t4-1"}
    assert versions(world) == {NEW}, "the other ones have it, and work"
    world.fault()
    world.apply("--cluster-only", check=True)
    assert not broken(world)
    assert not any(node["spec"].get("unschedulable") for node in nodes(world).values())
    assert "everything is as declared" in world.plan().text


@pytest.mark.real  # for the time it takes
def test_a_reboot_into_a_kernel_without_an_image(new_world: Make) -> None:
    """With precompiled drivers, during the rollout of another branch."""
    world = new_world(timings={"speed": 15})
    precompiled: dict[str, Any] = {"use_precompiled": True, "version": "580", "timeout": 40, "upgrade_policy": POLICY}
    world.settings(driver=precompiled, rollout={"stop_after_failures": 2})
    world.apply("--cluster-only", check=True)
    world.settings(driver={"version": "595"})
    reboot_in_a_rollout(world, NO_IMAGE, {"fault": "image-pull-fails", "image": "driver:595"})
    again = world.apply("--cluster-only")
    assert again.code == 1
    assert "GP518" in again.text
    assert broken(world).keys() == {"t4-1"}
    world.fault()
    world.apply("--cluster-only", check=True)
    assert not broken(world)
    assert "everything is as declared" in world.plan().text


@pytest.mark.real  # for the time it takes
def test_the_next_kernel_is_in_drift_unless_it_is_held(new_sandbox: Callable[..., SandboxWorld]) -> None:
    """With ``hold_packages`` no upgrade brings a kernel; what came before is named, with what follows."""
    world = new_sandbox()
    world.settings(host_prerequisites={"hold_packages": True})
    world.apply(check=True)
    folder = world.folder / "sandboxes/fleet/hosts"
    held = (folder / "t4-1/var/lib/gpu-provision/held-packages").read_text()
    assert "linux-image-5.15.0-122-generic" in held
    assert "GP63" not in drift(world)[1]
    modules = folder / "t4-2/lib/modules" / KERNEL
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()
    (folder / f"t4-2/boot/vmlinuz-{KERNEL}").touch()
    _, text = drift(world)
    assert f"GP630 t4-2: kernel 5.15.0-122-generic runs, and {KERNEL} probably boots next" in text
    assert "the driver is rebuilt" in text
