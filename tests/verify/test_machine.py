"""What is read off machines, on simulated ones that have been tampered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import load
from gpu_provision.verify import hosts
from gpu_provision.verify.hosts import host_of


@pytest.fixture
def host(sandbox: Path, inventory_file: Path) -> Any:
    """A fresh machine."""
    assert not sandbox.exists()
    return host_of(load(inventory_file), "good-1")


def test_modules_are_loaded_or_built_in(host: Any) -> None:
    """Dashes are underscores to the kernel."""
    assert "ipmi_msghandler" not in hosts.loaded(host)
    host.run_test("modprobe ipmi_msghandler")
    assert "ipmi_msghandler" in hosts.loaded(host)
    assert "i2c_core" in hosts.built_in(host)


_OF_SYSTEMD = pytest.param("/usr/lib/modules-load.d/x.conf", marks=pytest.mark.real)  # the machine has to have it


@pytest.mark.parametrize(
    "file", ["/etc/modules", "/etc/modules-load.d/x.conf", "/run/modules-load.d/x.conf", _OF_SYSTEMD]
)
def test_modules_are_listed_for_the_boot_in_any_folder(host: Any, file: str) -> None:
    """Of any origin; a comment is no module."""
    host.run_test(f"mkdir -p {file.rpartition('/')[0]}; printf '# ib-umad\\nipmi-devintf\\n' >>{file}")
    found = hosts.listed_for_boot(host)
    assert "ipmi_devintf" in found
    assert not any("ib_umad" in each for each in found)


@pytest.mark.parametrize(
    ("line", "keeps_away"),
    [
        ("blacklist nouveau", True),
        ("  install nouveau /bin/false", True),
        ("install nouveau /sbin/modprobe nouveau", False),
        ("#blacklist nouveau", False),
        ("blacklist nouveau_vieux", False),
        ("options nouveau modeset=0", False),
    ],
)
def test_blacklists_of_modprobe(host: Any, line: str, keeps_away: bool) -> None:  # noqa: FBT001 - a column of the table
    """A blacklist, or an install command that loads nothing."""
    assert not hosts.is_blacklisted(host, "nouveau")
    host.run_test(f"echo '{line}' >/etc/modprobe.d/x.conf")
    assert hosts.is_blacklisted(host, "nouveau") is keeps_away


class CommandLine:
    """A machine of which only the kernel's command line is known."""

    def __init__(self, text: str) -> None:
        """Keep it."""
        self.text = text

    def run(self, command: str) -> Any:
        """Answer with the command line, or nothing."""
        told = self.text if command == "cat /proc/cmdline" else ""
        return type("Answer", (), {"stdout": told, "rc": 0})()


@pytest.mark.parametrize("name", ["modprobe.blacklist", "module_blacklist", "rd.driver.blacklist"])
def test_blacklists_of_the_kernels_command_line(name: str) -> None:
    """Among others there."""
    assert hosts.is_blacklisted(CommandLine(f"quiet {name}=floppy,nouveau splash"), "nouveau")
    assert not hosts.is_blacklisted(CommandLine(f"quiet {name}=nouveau2"), "nouveau")


def test_only_gpus_count_on_the_bus(host: Any) -> None:
    """Not the sound function of one, and not another vendor's."""
    assert hosts.gpus(host) == 1
    for slot, vendor, kind in (("a", "0x10de", "0x040300"), ("b", "0x1002", "0x030000"), ("c", "0x10de", "0x030000")):
        device = f"/sys/bus/pci/devices/{slot}"
        host.run_test(f"mkdir -p {device}; echo {vendor} >{device}/vendor; echo {kind} >{device}/class")
    assert hosts.gpus(host) == 2
