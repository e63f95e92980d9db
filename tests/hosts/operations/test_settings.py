"""Settings of the system: decided from the record, done on simulated hosts, the shell on scratch roots."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.facts.system import Settings
from gpu_provision.hosts.operations.settings import settings_changes, sysctl_command
from gpu_provision.hosts.result import HostOutcome
from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.hosts.scripts import LINKS_RULE, LINKS_SCRIPT, SYSCTL_FILE
from gpu_provision.model.hosts import HostPrerequisites
from gpu_provision.model.inventory import Inventory
from tests.hosts.operations.test_teardown import files
from tests.hosts.test_runner import FIRST, inventory

WANTED = {"vm.max_map_count": "262144", "net.ipv4.tcp_rmem": "4096 131072 16777216"}
SHELLS = [["dash"], pytest.param(["busybox", "sh"], marks=pytest.mark.real), ["bash", "--posix"]]


def with_settings(declared: Inventory, **settings: object) -> Inventory:
    """Return the inventory with other prerequisites of its GPU pools."""
    prerequisites = HostPrerequisites(**settings)  # type: ignore[arg-type]
    pools = {name: replace(pool, host_prerequisites=prerequisites) for name, pool in declared.pools.items()}
    return replace(declared, pools=pools)


def only(declared: Inventory) -> HostOutcome:
    """Run the host phase and return how its one host came out."""
    (outcome,) = prepare(declared).hosts
    return outcome


@pytest.fixture
def fresh(tmp_path: Path, sandbox: Path) -> tuple[Inventory, Path]:
    """An inventory of one host that was only read yet, and the host's root."""
    declared = inventory(tmp_path, "good-1")
    prepare(declared, dry_run=True)
    return declared, sandbox / "mine/hosts/good-1"


def test_settings_are_made_once_kept_for_the_boot_and_taken_back(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, a value changed behind our back, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, sysctls=WANTED, dev_char_symlinks=True)
    assert only(declared).changes == (
        *FIRST,
        "kernel parameters set: vm.max_map_count=262144, net.ipv4.tcp_rmem=4096 131072 16777216",
        "kernel parameters kept for the boot",
        "GPUs linked in /dev/char",
    )
    assert (root / "proc/sys/vm/max_map_count").read_text() == "262144\n"
    assert (root / SYSCTL_FILE.lstrip("/")).read_text().splitlines()[1:] == [
        "vm.max_map_count = 262144",
        "net.ipv4.tcp_rmem = 4096 131072 16777216",
    ]
    assert LINKS_SCRIPT in (root / LINKS_RULE.lstrip("/")).read_text()
    assert only(declared).changes == ()
    (root / "proc/sys/vm/max_map_count").write_text("1\n")
    assert only(declared).changes == ("kernel parameters set: vm.max_map_count=262144",)
    assert only(plain).changes == (
        "kernel parameters no longer kept for the boot",
        "GPUs no longer linked in /dev/char",
    )
    assert only(plain).changes == ()
    teardown(plain)
    assert files(root) == before


def test_unknown_kernel_parameter_fails_the_host(fresh: tuple[Inventory, Path]) -> None:
    """With its name; nothing is written for the boot."""
    declared, root = fresh
    outcome = only(with_settings(declared, sysctls={"vm.no_such": "1"}))
    assert outcome.failed
    assert "this kernel has no parameter vm.no_such" in outcome.reason
    assert not (root / SYSCTL_FILE.lstrip("/")).exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_script_links_every_node_of_the_driver(tmp_path: Path, shell: list[str]) -> None:
    """By the majors that the kernel gave; a second time nothing changes; links that are there stay."""
    proc, char = tmp_path / "proc", tmp_path / "char"
    for gpu in ("0000:10:00.0", "0000:11:00.0"):
        (proc / "driver/nvidia/gpus" / gpu).mkdir(parents=True)
    (proc / "driver/nvidia/capabilities/mig").mkdir(parents=True)
    (proc / "driver/nvidia/capabilities/mig/config").write_text("DeviceFileMinor: 1\nDeviceFileMode: 256\n")
    (proc / "devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:\n  8 sd\n"
    )
    char.mkdir()
    (char / "195:0").symlink_to("/elsewhere")
    (change,) = settings_changes(Settings(), sysctls={}, links=True)
    _, lines = change.files[LINKS_SCRIPT]
    (tmp_path / "script").write_text("\n".join([*(lines or ()), ""]))
    command = [*shell, str(tmp_path / "script"), str(proc), str(tmp_path / "sys"), str(char)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name: str(path.readlink()) for path in char.iterdir()} == {
        "195:0": "/elsewhere",
        "195:1": "../nvidia1",
        "195:254": "../nvidia-modeset",
        "195:255": "../nvidiactl",
        "508:0": "../nvidia-uvm",
        "508:1": "../nvidia-uvm-tools",
        "509:1": "../nvidia-caps/nvidia-cap1",
    }


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_values_are_written_as_they_are(tmp_path: Path, shell: list[str]) -> None:
    """Whatever they look like to a shell."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/core_pattern").write_text("core\n")
    command = sysctl_command({"kernel.core_pattern": "|/bin/x '%e' $HOME"}).replace("/proc/sys", str(tmp_path))
    subprocess.run([*shell, "-c", command], check=True)
    assert (tmp_path / "kernel/core_pattern").read_text() == "|/bin/x '%e' $HOME\n"


def test_a_kernel_parameter_is_no_shell_command(tmp_path: Path) -> None:
    """No schema checks the arguments of an operation that is called by hand."""
    command = sysctl_command({f"vm.x ] || touch {tmp_path}/touched || [ a": "1"})
    subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert list(tmp_path.iterdir()) == []
