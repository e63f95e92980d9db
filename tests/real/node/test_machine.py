"""The machine leaves this computer alone: nothing is changed here, and nothing stays."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.node.machine import missing
from tests.real.node.user import CHECKOUT, NodeUser

pytestmark = pytest.mark.real

_SECONDS = 60
_LAUNCHER = """
import sys, time
from pathlib import Path
from tests.real.node.machine import machine

with machine(Path(sys.argv[1])):
    time.sleep(600)
"""


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


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


def test_nothing_stays_of_a_machine_whose_owner_was_killed(tmp_path: Path) -> None:
    """No process, no mount, no cgroup."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "pci").mkdir()
    owner = subprocess.Popen([sys.executable, "-c", _LAUNCHER, str(tmp_path)], cwd=CHECKOUT)
    try:
        until((tmp_path / "plane/kube-apiserver.log").exists)
        first = int((tmp_path / "pid").read_text())
        named = re.search(r"gpu-provision-node-\d+", Path(f"/proc/{first}/cgroup").read_text())
        assert named
        assert any(Path("/sys/fs/cgroup").rglob(named[0]))
    finally:
        owner.kill()
        owner.wait()
    until(lambda: not Path(f"/proc/{first}").exists())
    until(lambda: not any(Path("/sys/fs/cgroup").rglob(named[0])))
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [command for command in commands if bytes(tmp_path) in command]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
