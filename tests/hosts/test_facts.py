"""The fact's script, run by real shells on hosts of several kinds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_provision.hosts.facts import MODULES_FILE, NOUVEAU_FILE, GpuHost
from gpu_provision.hosts.record import HostRecord, parse
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.host_root import HostSpec

WANTED = ("i2c-core", "ipmi_msghandler")
T4 = HostSpec(name="t4-1", gpus=(("1eb8", "0302"),))


def seen(spec: HostSpec, sandbox: Path, before: str = ":") -> HostRecord:
    """Return what the fact says about a new simulated host on which something was done before."""
    host = hosts.ensure(spec, sandbox)
    hosts.run(host, before).check_returncode()
    done = hosts.run(host, GpuHost().command(WANTED))
    assert (done.returncode, done.stderr) == (0, b"")
    record = GpuHost().process(done.stdout.decode().splitlines())
    assert record
    return record


def test_fresh_ubuntu_host(sandbox: Path) -> None:
    """What it is, has and lacks."""
    record = seen(T4, sandbox)
    assert (record.kernel, record.architecture) == ("5.15.0-122-generic", "x86_64")
    assert (record.os_id, record.os_version) == ("ubuntu", "22.04")
    assert record.built_in == {"i2c_core"}
    assert record.available == {"ipmi_msghandler"}
    assert "ipmi_msghandler" not in record.loaded
    assert [gpu.device for gpu in record.gpus] == ["1eb8"]
    assert record.initramfs_tool == "update-initramfs"
    assert not record.nouveau_blacklisted
    assert (record.modules_file, record.nouveau_file) == (None, None)


def test_red_hat_host(sandbox: Path) -> None:
    """Another name for the image, another tool."""
    record = seen(HostSpec(name="r", os_id="rhel", os_version="9.4", kernel="5.14.0-427.el9.x86_64"), sandbox)
    assert record.initramfs == "/boot/initramfs-5.14.0-427.el9.x86_64.img"
    assert record.initramfs_tool == "dracut"
    assert record.gpus == ()


def test_files_of_ours_are_read_line_by_line(sandbox: Path) -> None:
    """Also without a newline at the end, also empty."""
    record = seen(T4, sandbox, f"printf 'a\\nb' > {MODULES_FILE}; : > {NOUVEAU_FILE}")
    assert record.modules_file == ("a", "b")
    assert record.nouveau_file == ()
    assert record.at_boot == {"a", "b"}


def test_modules_for_the_boot_are_gathered_from_everywhere(sandbox: Path) -> None:
    """The last line of a file without a newline does not swallow the next file."""
    record = seen(T4, sandbox, "printf ipmi-si >> /etc/modules; echo overlay > /etc/modules-load.d/k8s.conf")
    assert {"ipmi_si", "overlay"} <= record.at_boot


@pytest.mark.parametrize(
    "line",
    ["blacklist nouveau", "  blacklist\tnouveau  # no", "install nouveau /bin/false"],
)
def test_blacklists_of_others_are_seen(sandbox: Path, line: str) -> None:
    """However they are written."""
    assert seen(T4, sandbox, f"printf '{line}\\n' > /etc/modprobe.d/other.conf").nouveau_blacklisted_elsewhere


def test_own_blacklist_is_not_that_of_somebody_else(sandbox: Path) -> None:
    """Otherwise we would take our own file for superfluous."""
    record = seen(T4, sandbox, f"echo blacklist nouveau > {NOUVEAU_FILE}")
    assert record.nouveau_blacklisted
    assert not record.nouveau_blacklisted_elsewhere


def test_commented_blacklist_is_none(sandbox: Path) -> None:
    """A line that begins with a hash says nothing."""
    assert not seen(T4, sandbox, "echo '# blacklist nouveau' > /etc/modprobe.d/other.conf").nouveau_blacklisted


def test_initramfs_older_than_our_blacklist_is_stale(sandbox: Path) -> None:
    """And no longer once it was rebuilt."""
    assert seen(T4, sandbox, f"echo blacklist nouveau > {NOUVEAU_FILE}").initramfs_stale
    assert not seen(T4, sandbox, "update-initramfs -u").initramfs_stale


def test_kernel_command_line_counts_and_is_otherwise_not_read(sandbox: Path) -> None:
    """It may hold secrets that are nobody's business."""
    host = hosts.ensure(T4, sandbox)
    (host.directory / "proc/cmdline").write_text("password=secret modprobe.blacklist=nouveau quiet\n")
    output = hosts.run(host, GpuHost().command(WANTED)).stdout.decode()
    assert "secret" not in output
    record = parse(output.splitlines())
    assert record
    assert record.nouveau_blacklisted_elsewhere


def test_requested_reboot_is_seen(sandbox: Path) -> None:
    """By the file that Debian's and Ubuntu's packages leave."""
    assert seen(T4, sandbox, "touch /run/reboot-required").reboot_required


def test_module_of_the_kernel_is_known_from_sys_alone(sandbox: Path) -> None:
    """Kernels without loadable modules have no index."""
    record = seen(HostSpec(name="mono"), sandbox, "rm -r /lib/modules/*; mkdir -p /sys/module/ipmi_msghandler")
    assert {"i2c_core", "ipmi_msghandler"} <= record.built_in


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh", "mksh", "yash"])
def test_every_shell_says_the_same(shell: str) -> None:
    """On this very machine, whatever it is; /bin/sh is the reference."""
    program, *options = shell.split()
    if not shutil.which(program):
        pytest.skip(f"no {program} on this machine")
    script = GpuHost().command(WANTED)
    reference, other = (
        subprocess.run([*words, "-c", script], capture_output=True, check=True).stdout
        for words in (["sh"], [program, *options])
    )
    assert other == reference
    assert parse(reference.decode().splitlines())
