"""The machine leaves this computer alone: nothing is changed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.node.user import NodeUser

pytestmark = pytest.mark.real


def kernel_settings() -> list[str]:
    """Settings of the whole kernel that kubelet would like to make."""
    return [Path("/proc/sys", name).read_text() for name in ("kernel/panic", "vm/overcommit_memory")]


def test_what_is_written_on_the_machine_is_not_written_here(user: NodeUser) -> None:
    user.machine.run("sh", "-c", "touch /usr/only-there /etc/only-there /run/only-there /dev/only-there")
    assert not [folder for folder in ("/usr", "/etc", "/run", "/dev") if Path(folder, "only-there").exists()]


def test_the_machine_sets_nothing_in_the_kernel(user: NodeUser) -> None:
    """Kubelet finds its settings made, and could not make them."""
    assert user.machine.run("cat", "/proc/sys/kernel/panic") == "10\n"
    before = kernel_settings()
    refused = user.machine.run("sh", "-c", "echo 5 2>&1 > /proc/sys/kernel/threads-max || true")
    assert "Read-only file system" in refused
    user.machine.run("sh", "-c", "echo 77 > /proc/sys/kernel/panic")
    assert kernel_settings() == before
