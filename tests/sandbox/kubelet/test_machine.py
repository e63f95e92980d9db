"""What a machine remembers, and what a reboot takes away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_provision.sandbox.fleet import MachineSpec, models
from gpu_provision.sandbox.kubelet.machine import Machine

SPEC = MachineSpec(name="gpu-1", kernel="5.15", gpu=models()["T4"], gpus=2)


def test_memory_outlives_an_interrupted_write(tmp_path: Path) -> None:
    """The last whole line counts; a torn one is passed over."""
    machine = Machine(SPEC, home=tmp_path)
    machine.state.driver = "580.95.05"
    machine.changed()
    with (tmp_path / "gpu-1.jsonl").open("a") as file:
        file.write('{"boot_id": "torn')
    again = Machine(SPEC, home=tmp_path)
    assert (again.known, again.state.driver, again.state.boot_id) == (True, "580.95.05", machine.state.boot_id)


def test_a_file_that_means_nothing_is_a_first_boot(tmp_path: Path) -> None:
    """An unreadable memory does not keep the sandbox from starting."""
    (tmp_path / "gpu-1.jsonl").write_text('[]\n{"unknown": 1}\n\x00\n')
    assert not Machine(SPEC, home=tmp_path).known


def test_a_configuration_of_an_earlier_sandbox_names_no_handler() -> None:
    """It is that of the toolkit's default, as it was then."""
    machine = Machine(SPEC)
    machine.state.files["/etc/containerd/conf.d/99-nvidia.toml"] = "# NVIDIA container runtime at /usr/local/nvidia\n"
    assert machine.handlers == {"", "runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}


def test_a_reboot_keeps_disks_and_loses_memory() -> None:
    """/etc and images stay; modules, /run, the driver and granted devices go; the boot ID changes."""
    machine = Machine(SPEC)
    machine.state.files |= {"/etc/containerd/conf.d/99-nvidia.toml": "", "/run/nvidia/validations/x": ""}
    machine.state.modules.append("nvidia")
    machine.state.driver = "580.95.05"
    machine.state.images["a"] = "b"
    machine.register_devices(2)
    machine.grant("pod/main", 1)
    boot = machine.state.boot_id
    machine.reboot()
    state = machine.state
    assert state.boot_id != boot
    assert set(state.files) == {"/etc/containerd/conf.d/99-nvidia.toml"}
    assert (state.modules, state.driver, state.images, state.devices, state.granted) == ([], "", {"a": "b"}, 0, {})


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


def test_an_empty_dir_lives_as_long_as_its_pod(tmp_path: Path) -> None:
    """Neither a reboot nor the end of the simulation empties it: init containers that are done do not run again."""
    machine = Machine(SPEC, home=tmp_path)
    machine.empty_dir("uid", "scratch")["/driver-ready"] = "x"
    machine.reboot()
    again = Machine(SPEC, home=tmp_path)
    assert again.empty_dir("uid", "scratch") == {"/driver-ready": "x"}
    again.release("uid")
    assert again.empty_dir("uid", "scratch") == {}


def test_devices_are_granted_once_and_come_back() -> None:
    """Two containers never hold the same device."""
    machine = Machine(SPEC)
    machine.register_devices(2)
    assert machine.grant("a/main", 1)
    assert machine.grant("b/main", 1)
    assert not machine.grant("c/main", 1)
    assert machine.state.granted == {"a/main": [0], "b/main": [1]}
    machine.release("a")
    assert machine.grant("c/main", 1)


def test_nouveau_is_what_the_simulated_host_shows(tmp_path: Path) -> None:
    """The host's own /proc/modules decides, once there is one; a module in use cannot be unloaded."""
    modules = tmp_path / "hosts" / "gpu-1" / "proc" / "modules"
    modules.parent.mkdir(parents=True)
    modules.write_text("nouveau 2285568 4 - Live 0x0\next4 1 0 - Live 0x0\n")
    machine = Machine(SPEC, home=tmp_path / "machines")
    assert machine.nouveau_loaded()
    assert not machine.unload_nouveau()
    modules.write_text("nouveau 2285568 0 - Live 0x0\next4 1 0 - Live 0x0\n")
    assert machine.unload_nouveau()
    assert not machine.nouveau_loaded()
    assert modules.read_text() == "ext4 1 0 - Live 0x0\n"


def test_the_hosts_own_driver_is_what_the_simulated_host_shows(tmp_path: Path) -> None:
    """What the fleet says counts until there is a host; then what is installed there does, from the next boot on."""
    machine = Machine(replace(SPEC, host={"driver": "535.183.01"}), home=tmp_path / "machines")
    assert machine.host_driver == "535.183.01"
    root = tmp_path / "hosts" / "gpu-1"
    for path in ("proc/modules", ".sandbox/nvidia"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text("550.90.07\n" if "nvidia" in path else "")
    assert machine.host_driver == "550.90.07"
    (root / ".sandbox/nvidia").unlink()
    machine.reboot()
    assert (machine.host_driver, machine.state.driver) == ("", "")
    assert "/usr/bin/nvidia-smi" not in machine.state.files


def test_the_host_sees_the_driver_of_a_container(tmp_path: Path) -> None:
    """As on a real one: a version below /sys, and files below /run/nvidia/driver; neither outlives the driver."""
    root = tmp_path / "hosts" / "gpu-1"
    (root / "proc").mkdir(parents=True)
    (root / "proc/modules").write_text("")
    machine = Machine(SPEC, home=tmp_path / "machines")
    seen = [root / "sys/module/nvidia/version", root / "run/nvidia/driver/usr/bin/nvidia-smi"]
    machine.host.show_containers_driver("580.95.05")
    assert seen[0].read_text() == "580.95.05\n"
    assert seen[1].exists()
    assert machine.unload_driver()
    assert not any(path.exists() for path in seen)


def test_a_machine_and_its_simulated_host_are_in_the_same_boot(tmp_path: Path) -> None:
    """Whichever of them reboots, the other follows; the one that is there first names the boot."""
    home, told = tmp_path / "machines", tmp_path / "hosts/gpu-1/proc/sys/kernel/random/boot_id"
    told.parent.mkdir(parents=True)
    told.write_text("first\n")
    machine = Machine(SPEC, home=home)
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
