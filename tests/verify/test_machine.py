"""What keeps a kernel module from loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import load
from gpu_provision.verify.checks.hosts import is_blacklisted
from gpu_provision.verify.hosts import host_of


@pytest.fixture
def host(sandbox: Path, inventory_file: Path) -> Any:
    assert not sandbox.exists()
    return host_of(load(inventory_file), "good-1")


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
    assert not is_blacklisted(host, "nouveau")
    host.run_test(f"echo '{line}' >/etc/modprobe.d/x.conf")
    assert is_blacklisted(host, "nouveau") is keeps_away


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
    assert is_blacklisted(CommandLine(f"quiet {name}=floppy,nouveau splash"), "nouveau")
    assert not is_blacklisted(CommandLine(f"quiet {name}=nouveau2"), "nouveau")
