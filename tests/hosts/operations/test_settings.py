"""Kernel parameters, limits, huge pages and persistence mode: done on simulated hosts, the shell on scratch roots."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts.facts.gpus import DAEMON
from gpu_provision.hosts.facts.system import Settings
from gpu_provision.hosts.operations.settings import reserve_now, settings_changes, sysctl_command
from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.hosts.scripts import HUGEPAGES_FILE, LINKS_SCRIPT, STATE, SYSCTL_FILE, UNAWARE_KUBELETS
from gpu_provision.model.hosts import Preflight
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts import SimulatedHost
from tests import data_file
from tests.hosts.fleet import FIRST, SHELLS, files, inventory, only, with_settings

LIVES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def read_only(directory: Path, sandbox: Path, node: str) -> tuple[Inventory, Path]:
    """Return an inventory of a host that was only read yet, and its root; a driver of its own is used."""
    declared = inventory(directory, node)
    if node == "driver-1":
        t4 = replace(declared.pools["t4"], driver=replace(declared.pools["t4"].driver, enabled=False))
        codes = ("GP615", "GP616", "GP620", "GP621", "GP623")
        declared = replace(declared, pools={**declared.pools, "t4": t4}, preflight=Preflight(ignore=codes))
    prepare(declared, dry_run=True)
    return declared, sandbox / "mine/hosts" / node


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life["case"])
def test_setting_is_made_once_kept_repaired_and_taken_back(tmp_path: Path, sandbox: Path, life: dict[str, Any]) -> None:
    plain, root = read_only(tmp_path, sandbox, life.get("node", "good-1"))
    for path, text in life.get("before", {}).items():
        (root / path).write_text(text)
    before = files(root)
    declared = with_settings(plain, **life["settings"])
    assert only(declared).changes == (*FIRST, *life["first"])
    for path, text in life["hold"].items():
        assert text in (root / path).read_text()
    assert only(declared).changes == ()
    for path, (old, new) in life["changed"].items():
        (root / path).write_text((root / path).read_text().replace(old, new))
    assert only(declared).changes == tuple(life["repaired"])
    without = with_settings(plain, **life.get("without", {}))
    assert only(without).changes == tuple(life["gone"])
    assert only(without).changes == ()
    only(declared)
    teardown(declared)
    assert files(root) == before
    assert all(text in (root / path).read_text() for path, text in life.get("after", {}).items())


def test_pages_are_there_after_a_reboot(fresh: tuple[Inventory, Path]) -> None:
    plain, root = fresh
    declared = with_settings(plain, hugepages={"2Mi": 512})
    only(declared)
    hosts.reboot(SimulatedHost("good-1", root))
    assert (root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "512\n"
    assert only(declared).changes == ()


def test_unknown_kernel_parameter_fails_the_host(fresh: tuple[Inventory, Path]) -> None:
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


def test_a_kernel_parameter_is_no_shell_command(tmp_path: Path) -> None:
    """No schema checks the arguments of an operation that is called by hand."""
    command = sysctl_command({f"vm.x ] || touch {tmp_path}/touched || [ a": "1"})
    subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_host_without_a_runtime_fails_and_is_left_alone(fresh: tuple[Inventory, Path]) -> None:
    declared, root = fresh
    for process in ("812", "977"):  # with the kubelet; without the runtime alone, preflight says more (GP646)
        (root / "proc" / process / "comm").write_text("gone\n")
    outcome = only(with_settings(declared, limits={"memlock": "unlimited"}))
    assert [finding.code for finding in outcome.errors] == ["GP667"]
    assert not list(root.glob("etc/systemd/system/*/90-gpu-provision-limits.conf"))


def test_next_run_restarts_the_kubelet_after_an_interruption(fresh: tuple[Inventory, Path]) -> None:
    """The pages are there and the kubelet does not know: the next run restarts it."""
    declared, root = fresh
    wanted = with_settings(declared, hugepages={"2Mi": 8})
    only(wanted)
    start = (root / "proc/977/stat").read_text().split()[-1]
    (root / "run/gpu-provision").mkdir(exist_ok=True)
    (root / UNAWARE_KUBELETS.lstrip("/")).write_text(f"977 {start} kubelet\n")
    assert only(wanted).changes == ("kubelet restarted, to count huge pages",)
    assert only(wanted).changes == ()


def test_kubelet_of_a_distribution_is_not_restarted_but_told_of(tmp_path: Path, sandbox: Path) -> None:
    declared = with_settings(inventory(tmp_path, "good-1"), hugepages={"2Mi": 8})
    fleet = tmp_path / "mine.yaml"
    fleet.write_text(fleet.read_text().replace("nodes:", "nodes:\n- {name: unused}").replace(
        "{name: good-1,", "{name: good-1, kubelet: v1.31.4+k3s1, "))  # fmt: skip
    result = prepare(declared)
    assert [(finding.code, finding.evidence, finding.fix) for finding in result.findings] == [
        ("GP669", "k3s-agent[977]", "systemctl restart k3s or k3s-agent")
    ]
    assert [finding.code for finding in prepare(declared).findings] == ["GP669"]
    stat = sandbox / "mine/hosts/good-1/proc/977/stat"
    stat.write_text(stat.read_text().replace(" 2500", " 9900"))
    assert not prepare(declared).findings


def test_host_that_cannot_have_them_fails_and_is_left_alone(fresh: tuple[Inventory, Path]) -> None:
    declared, root = fresh
    for wanted, words in (({"64Ki": 1}, "no huge pages of 64Ki"), ({"1Gi": 1000}, "too little memory")):
        outcome = only(with_settings(declared, hugepages=wanted))
        assert [finding.code for finding in outcome.errors] == ["GP666"]
        assert words in outcome.reason
    assert not (root / HUGEPAGES_FILE.lstrip("/")).exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_shell_remembers_how_many_there_was_room_for(tmp_path: Path, shell: list[str]) -> None:
    """Each size once; a kernel that refuses altogether is no failure of the command."""
    pool = tmp_path / "pools/hugepages-2048kB"
    pool.mkdir(parents=True)
    (pool / "nr_hugepages").write_text("3\n")
    script = reserve_now({"2Mi": 512}).replace("/sys/kernel/mm/hugepages", str(tmp_path / "pools"))
    script = script.replace(STATE, str(tmp_path / "state")).replace('echo "$2" 2>/dev/null >"$3"', "false")
    for _ in range(2):
        done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "state/hugepages").read_text() == "2Mi 512 3\n"


UNIT = f".sandbox/units/{DAEMON}.service"


def test_daemon_that_runs_already_is_no_change(tmp_path: Path, sandbox: Path) -> None:
    declared, root = read_only(tmp_path, sandbox, "driver-1")
    assert only(declared).changes == FIRST
    teardown(declared)
    assert (root / UNIT).read_text().split()[:2] == ["active", "enabled"]


@pytest.mark.parametrize("systemd", [True, False])
def test_driver_that_nothing_can_keep_initialized_is_a_warning(tmp_path: Path, sandbox: Path, *, systemd: bool) -> None:
    """Without its daemon, or without a systemd that runs: nothing is asked of that then."""
    declared, root = read_only(tmp_path, sandbox, "driver-1")
    if systemd:
        (root / UNIT).unlink()
    else:
        tool = root / ".sandbox/bin/systemctl"
        tool.unlink()
        tool.write_text("#!/bin/sh\necho offline\necho 'Failed to connect to bus: Host is down' >&2\nexit 1\n")
        tool.chmod(0o755)
    result = prepare(declared)
    assert not result.failed
    (told,) = [finding for finding in result.findings if finding.code == "GP668"]
    assert ("systemd does not run here" in told.evidence) is not systemd
    assert systemd or (root / UNIT).read_text().split()[:2] == ["active", "enabled"]


def test_driver_of_a_container_is_left_to_it(tmp_path: Path, sandbox: Path) -> None:
    declared = replace(inventory(tmp_path, "driver-1"), preflight=Preflight(ignore=("GP615", "GP620")))
    prepare(declared, dry_run=True)
    (sandbox / "mine/hosts/driver-1" / UNIT).write_text("inactive disabled\n")
    assert only(declared).changes == FIRST
