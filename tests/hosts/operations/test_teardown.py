"""The end of the host phase, on simulated hosts and through pyinfra's own command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.kernel import Kernel, Nouveau
from gpu_provision.hosts.facts.packages import Original, Originals
from gpu_provision.hosts.facts.runtime import ContainerRuntime, Kubernetes
from gpu_provision.hosts.operations import teardown as operations
from gpu_provision.hosts.operations.teardown import describe_restore, reload_commands, runtime_to_restart
from gpu_provision.hosts.runner import prepare, teardown
from tests.hosts.fleet import files, inventory

RESTORED = ("removed /etc/modules-load.d/gpu-provision.conf", "removed /etc/modprobe.d/gpu-provision-nouveau.conf")

LOCAL = ".sandbox/local"  # what a simulated host sees as /usr/local


@pytest.fixture
def root(tmp_path: Path, sandbox: Path) -> Path:
    """Root directory of a new host that was read once."""
    prepare(inventory(tmp_path, "good-2"), dry_run=True)
    return sandbox / "mine/hosts/good-2"


def test_teardown_leaves_the_host_as_it_was(tmp_path: Path, root: Path) -> None:
    """Every file to the byte, the initramfs included; modules stay loaded; a second time there is nothing to do."""
    before = files(root)
    declared = inventory(tmp_path, "good-2")
    prepare(declared)
    assert files(root) != before
    prepared = files(root)
    shown = teardown(declared, dry_run=True)
    assert files(root) == prepared
    first, second = teardown(declared), teardown(declared)
    assert [host.changes for host in (*shown.hosts, *first.hosts)] == [RESTORED, RESTORED]
    assert [host.changes for host in second.hosts] == [()]
    assert not first.failed
    assert files(root) == before
    assert not (root / "var/lib/gpu-provision").exists()
    assert "ipmi_msghandler" in (root / "proc/modules").read_text()


def test_file_that_was_there_comes_back(tmp_path: Path, root: Path) -> None:
    path = root / "etc/modprobe.d/gpu-provision-nouveau.conf"
    path.write_text("# by hand\n")
    declared = inventory(tmp_path, "good-2")
    prepare(declared)
    assert "blacklist nouveau" in path.read_text()
    result = teardown(declared)
    assert "restored /etc/modprobe.d/gpu-provision-nouveau.conf" in result.hosts[0].changes
    assert path.read_text() == "# by hand\n"


def test_what_the_container_toolkit_left_goes(tmp_path: Path, root: Path) -> None:
    """With directories that are empty then, also where the host phase had nothing to change; files of others stay."""
    programs, theirs = root / LOCAL / "nvidia/toolkit", root / "opt/theirs"
    for path in (programs / "nvidia-container-runtime", programs / "nvidia-ctk", theirs / "nvidia-ctk"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ELF\n")
    (root / "run/nvidia/validations").mkdir(parents=True)
    declared = inventory(tmp_path, "good-2")
    shown, first, second = teardown(declared, dry_run=True), teardown(declared), teardown(declared)
    (words,) = first.hosts[0].changes
    assert words.startswith("container toolkit removed from /usr/local/nvidia/toolkit: 2 files")
    assert (shown.hosts[0].changes, second.hosts[0].changes) == ((words,), ())
    assert not (root / LOCAL / "nvidia").exists()
    assert not (root / "run/nvidia").exists()
    assert (theirs / "nvidia-ctk").exists()


def test_programs_in_a_runtime_configuration_stay(tmp_path: Path, root: Path) -> None:
    program = root / LOCAL / "nvidia/toolkit/nvidia-container-runtime"
    program.parent.mkdir(parents=True)
    program.write_text("ELF\n")
    config = root / "etc/containerd/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"\n')
    result = teardown(inventory(tmp_path, "good-2"))
    assert [finding.code for finding in result.findings] == ["GP707"]
    assert (result.findings[0].evidence, result.failed) == ("/etc/containerd/config.toml names them", ())
    assert program.exists()


def test_the_system_reloads_restored_files() -> None:
    """Units, udev's rules and the initramfs, each only if a file of theirs differs."""
    unit = Original("file", "/etc/systemd/system/containerd.service.d/proxy.conf", differs=True)
    rule = Original("absent", "/etc/udev/rules.d/71-x.rules", differs=True)
    unchanged = Original("absent", "/etc/modprobe.d/x.conf", differs=False)
    record = HostFacts(
        kernel=Kernel(running="6.1"),
        nouveau=Nouveau(initramfs="/boot/initrd.img-6.1", initramfs_tool="update-initramfs"),
        originals=Originals(kept=(unit, rule, unchanged), present=True),
    )
    reload, rules = reload_commands(record)
    assert ("systemctl daemon-reload" in reload, "udevadm control --reload" in rules) == (True, True)
    anchors = Original("absent", "/etc/pki/ca-trust/source/anchors/gpu-provision-0.pem", differs=True)
    (trust,) = reload_commands(replace(record, originals=Originals(kept=(anchors,), present=True)))
    assert "update-ca-trust extract" in trust
    differing = replace(record, originals=Originals(kept=(replace(unchanged, differs=True),), present=True))
    (initramfs,) = reload_commands(differing)
    assert "update-initramfs -u -k 6.1" in initramfs


CONTAINERD = ContainerRuntime(
    kind="containerd",
    running=True,
    config="/etc/containerd/config.toml",
    target="/srv/containerd.toml",
    socket="/run/containerd/containerd.sock",
    unit="containerd.service",
)


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("/etc/containerd/config.toml", True),
        ("/srv/containerd.toml", True),
        ("/etc/systemd/system/containerd.service.d/90-gpu-provision-proxy.conf", True),
        ("/etc/gpu-provision/runtime-proxy.env", True),
        ("/usr/local/share/ca-certificates/gpu-provision-0123456789abcdef.crt", True),
        ("/etc/systemd/system/containerd.service.d/90-gpu-provision-limits.conf", False),
        ("/etc/systemd/system/ssh.service.d/x.conf", False),
        ("/etc/modprobe.d/x.conf", False),
    ],
)
def test_the_runtime_is_restarted_if_its_own_files_are_restored(path: str, *, again: bool) -> None:
    """Else it would run with what is no longer on the disk; one whose files are as they were goes on."""
    record = HostFacts(
        runtimes=(CONTAINERD,),
        kubernetes=Kubernetes(distribution="kubeadm", running=True),
        originals=Originals(kept=(Original("file", path, differs=True),), present=True),
    )
    assert runtime_to_restart(record) == (CONTAINERD if again else None)
    assert describe_restore(record) == (f"restored {path}", *(["containerd restarted"] if again else []))
    same = Originals(kept=(Original("file", path, differs=False),), present=True)
    assert runtime_to_restart(replace(record, originals=same)) is None
    assert runtime_to_restart(replace(record, kubernetes=Kubernetes())) is None


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("dead", "GP673 error"),
        ("gone", "GP673 error"),
        ("", "GP673 error"),
        ("no-tool", "GP670 warning"),
        ("changed", ""),
    ],
)
def test_silent_runtime_after_teardown_is_a_finding(outcome: str, told: str) -> None:
    result = ScriptResult(outcome=ScriptOutcome(outcome), evidence="why") if outcome else None
    found = operations.restart_finding(CONTAINERD, "gpu-1", result)
    assert (f"{found.code} {found.severity}" if found else "") == told
