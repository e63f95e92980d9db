"""What a machine remembers, what a reboot takes away, and what it shares with its simulated host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.sandbox.fleet import MachineSpec, models
from gpu_provision.sandbox.kubelet.machine import Machine

SPEC = MachineSpec(name="gpu-1", kernel="5.15", gpu=models()["T4"], gpus=2)
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "hosts" / "gpu-1"
    for path in ("proc/sys/kernel/random", ".sandbox"):
        (root / path).mkdir(parents=True)
    (root / "proc/modules").write_text("")
    return root


def test_memory_outlives_an_interrupted_write(tmp_path: Path) -> None:
    """The last whole line counts; a torn one is passed over, and so is a file that means nothing."""
    machine = Machine(SPEC, home=tmp_path)
    machine.state.driver = "580.95.05"
    machine.save_and_notify()
    with (tmp_path / "gpu-1.jsonl").open("a") as file:
        file.write('{"boot_id": "torn')
    again = Machine(SPEC, home=tmp_path)
    assert (again.known, again.state.driver, again.state.boot_id) == (True, "580.95.05", machine.state.boot_id)
    (tmp_path / "gpu-1.jsonl").write_text('[]\n{"unknown": 1}\n\x00\n')
    assert not Machine(SPEC, home=tmp_path).known


def test_a_reboot_keeps_disks_and_loses_memory(tmp_path: Path) -> None:
    """/etc, images and emptyDirs stay; modules, /run, the driver and granted devices go; the boot ID changes.

    A configuration of an earlier sandbox names no handler: it is the toolkit's default.
    """
    machine = Machine(SPEC, home=tmp_path)
    machine.state.files |= {DROP_IN: "# NVIDIA container runtime at /usr/local/nvidia\n", "/run/x": ""}
    machine.state.modules.append("nvidia")
    machine.state.driver = "580.95.05"
    machine.state.images["a"] = "b"
    machine.empty_dir("uid", "scratch")["/driver-ready"] = "x"
    machine.register_devices(2)
    machine.grant("pod/main", 1)
    boot = machine.state.boot_id
    machine.reboot()
    again = Machine(SPEC, home=tmp_path)
    for state in (machine.state, again.state):
        assert state.boot_id != boot
        assert set(state.files) == {DROP_IN}
        assert (state.modules, state.driver, state.images, state.devices, state.granted) == ([], "", {"a": "b"}, 0, {})
    assert again.handlers == {"", "runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert again.empty_dir("uid", "scratch") == {"/driver-ready": "x"}
    again.release("uid")
    assert again.empty_dir("uid", "scratch") == {}


def test_a_running_container_sees_the_hosts_files() -> None:
    """A driver that is unloaded takes its own files; what others write afterwards is seen by those who wait for it."""
    machine = Machine(SPEC)
    mounted = machine.state.files
    mounted |= {"/run/nvidia/driver/usr/bin/nvidia-smi": "", "/run/nvidia/validations/toolkit-ready": ""}
    assert machine.unload_driver()
    assert set(mounted) == {"/run/nvidia/validations/toolkit-ready"}
    machine.reboot()
    machine.state.files["/run/nvidia/validations/driver-ready"] = ""
    assert set(mounted) == {"/run/nvidia/validations/driver-ready"}


def test_devices_are_granted_once_and_come_back() -> None:
    machine = Machine(SPEC)
    machine.register_devices(2)
    assert [machine.grant(f"{pod}/main", 1) for pod in "abc"] == [True, True, False]
    assert machine.state.granted == {"a/main": [0], "b/main": [1]}
    machine.release("a")
    assert machine.grant("c/main", 1)


def test_nouveau_is_what_the_simulated_host_shows(host: Path) -> None:
    """A module in use cannot be unloaded."""
    machine = Machine(SPEC, home=host.parents[1] / "machines")
    for users in ("4", "0"):
        (host / "proc/modules").write_text(f"nouveau 2285568 {users} - Live 0x0\next4 1 0 - Live 0x0\n")
        assert machine.nouveau_loaded()
        assert machine.host.unload("nouveau") == (users == "0")
    assert not machine.nouveau_loaded()
    assert (host / "proc/modules").read_text() == "ext4 1 0 - Live 0x0\n"


def test_a_host_and_its_machine_see_each_others_driver(tmp_path: Path, host: Path) -> None:
    """What the fleet says counts until there is a host; then what is installed there does, from the next boot on.

    The host sees a container's driver below /sys and /run, as long as that is loaded.
    """
    spec = replace(SPEC, host={"driver": "535.183.01"})
    assert Machine(spec).host_driver == "535.183.01"
    (host / ".sandbox/nvidia").write_text("550.90.07\n")
    machine = Machine(spec, home=tmp_path / "machines")
    assert machine.host_driver == "550.90.07"
    (host / ".sandbox/nvidia").unlink()
    machine.reboot()
    assert (machine.host_driver, machine.state.driver) == ("", "")
    assert "/usr/bin/nvidia-smi" not in machine.state.files
    seen = [host / "sys/module/nvidia/version", host / "run/nvidia/driver/usr/bin/nvidia-smi"]
    machine.host.show_containers_driver("580.95.05")
    assert (seen[0].read_text(), seen[1].exists()) == ("580.95.05\n", True)
    assert machine.unload_driver()
    assert not any(path.exists() for path in seen)


def test_a_machine_and_its_simulated_host_are_in_the_same_boot(tmp_path: Path, host: Path) -> None:
    """Whichever of them reboots, the other follows; the one that is there first names the boot."""
    told = host / "proc/sys/kernel/random/boot_id"
    told.write_text("first\n")
    machine = Machine(SPEC, home=tmp_path / "machines")
    assert machine.state.boot_id == "first"
    machine.reboot()
    assert machine.state.boot_id == told.read_text().strip() != "first"
    told.write_text("of the host\n")
    machine.reboot()
    assert machine.state.boot_id == told.read_text().strip() == "of the host"
    told.unlink()
    machine.reboot()
    assert machine.state.boot_id != "of the host"
    assert not told.exists(), "the host has no state"
