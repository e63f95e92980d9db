"""Kernel parameters, limits and huge pages: done on simulated hosts, the shell on scratch roots."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.facts.system import Settings
from gpu_provision.hosts.operations.settings import reserve_now, settings_changes, sysctl_command
from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.hosts.scripts import HUGEPAGES_FILE, LINKS_RULE, LINKS_SCRIPT, STATE, SYSCTL_FILE, UNAWARE_KUBELETS
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts import SimulatedHost
from gpu_provision.sandbox.hosts.spec import HostSpec
from tests.hosts.fleet import FIRST, SHELLS, files, inventory, only, with_settings

SYSCTLS = {"vm.max_map_count": "262144", "net.ipv4.tcp_rmem": "4096 131072 16777216"}


def test_settings_are_made_once_kept_for_the_boot_and_taken_back(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, a value changed behind our back, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, sysctls=SYSCTLS, dev_char_symlinks=True)
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


DROP_IN = "etc/systemd/system/containerd.service.d/90-gpu-provision-limits.conf"
LIMITS = {"memlock": "unlimited", "stack": "64Mi"}


def test_limits_are_set_once_kept_for_the_boot_and_taken_back(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, other limits behind our back, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, limits=LIMITS)
    assert only(declared).changes == (
        *FIRST,
        "limits of containerd set: memlock=unlimited, stack=67108864",
        "limits kept for the boot: containerd.service",
    )
    assert (root / DROP_IN).read_text().splitlines()[1:] == [
        "[Service]",
        "LimitMEMLOCK=infinity",
        "LimitSTACK=67108864",
    ]
    assert "Max locked memory unlimited unlimited" in (root / "proc/812/limits").read_text()
    assert only(declared).changes == ()
    shown = root / "proc/812/limits"
    shown.write_text(shown.read_text().replace("Max locked memory unlimited", "Max locked memory 65536"))
    assert only(declared).changes == ("limits of containerd set: memlock=unlimited",)
    assert only(plain).changes == ("limits no longer kept for the boot: containerd.service",)
    assert only(plain).changes == ()
    teardown(plain)
    limits_of_the_process = "proc/812/limits"
    assert {path: text for path, text in files(root).items() if path != limits_of_the_process} == {
        path: text for path, text in before.items() if path != limits_of_the_process
    }


def test_host_without_a_runtime_fails_and_is_left_alone(fresh: tuple[Inventory, Path]) -> None:
    declared, root = fresh
    (root / "proc/812/comm").write_text("gone\n")
    outcome = only(with_settings(declared, limits=LIMITS))
    assert [finding.code for finding in outcome.errors] == ["GP667"]
    assert not (root / DROP_IN).exists()


def test_unit_of_a_runtime_is_found_on_every_distribution(sandbox: Path) -> None:
    units = {}
    for kubelet, runtime in (("v1.31.4+k3s1", "containerd://2.0"), ("v1.31.4", "cri-o://1.31.0")):
        host = hosts.ensure(HostSpec(name=runtime.partition(":")[0], kubelet=kubelet, runtime=runtime), sandbox)
        record = parse(hosts.run(host, command((), ("kernel", "limits"))).stdout.decode().splitlines())
        assert record
        units |= {each.name: (each.unit, each.limits["memlock"]) for each in record.limits.runtimes}
    limit = ("8388608", "8388608")
    assert units == {"containerd": ("k3s-agent.service", limit), "crio": ("crio.service", limit)}


PAGES = {"2Mi": 512, "1Gi": 4}
SMALL, LARGE = "sys/kernel/mm/hugepages/hugepages-2048kB", "sys/kernel/mm/hugepages/hugepages-1048576kB"


def test_pages_are_reserved_once_kept_and_released(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, fewer behind our back, a reboot, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, hugepages=PAGES)
    restarted = "kubelet restarted, to count huge pages"
    assert only(declared).changes == (
        *FIRST,
        "huge pages reserved: 4 x 1Gi (0 before), 512 x 2Mi (0 before)",
        "huge pages kept for the boot",
        restarted,
    )
    assert [(root / pool / "nr_hugepages").read_text() for pool in (SMALL, LARGE)] == ["512\n", "4\n"]
    assert only(declared).changes == ()
    (root / SMALL / "nr_hugepages").write_text("7\n")
    assert only(declared).changes == ("huge pages reserved: 512 x 2Mi (7 before)", restarted)
    hosts.reboot(SimulatedHost("good-1", root))
    assert (root / SMALL / "nr_hugepages").read_text() == "512\n"
    assert only(declared).changes == ()
    assert only(plain).changes == ("huge pages no longer kept for the boot",)
    assert only(plain).changes == ()
    teardown(plain)
    pools = {f"{pool}/nr_hugepages" for pool in (SMALL, LARGE)}
    left = {path: content for path, content in files(root).items() if path not in pools}
    assert left.keys() - before.keys() == set()
    assert not (root / HUGEPAGES_FILE.lstrip("/")).exists()


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
