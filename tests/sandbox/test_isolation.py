"""What happens where a machine cannot isolate simulated hosts."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import ANY

import pytest

from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts import isolation
from gpu_provision.sandbox.hosts.spec import HostSpec


@pytest.fixture(autouse=True)
def untried() -> None:
    isolation._find_method.cache_clear()


def test_refusal_of_the_system_is_one_line_with_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As seccomp, AppArmor or a sysctl would refuse."""
    refusing = tmp_path / "enter.py"
    refusing.write_text("import sys\nsys.exit('unshare: Operation not permitted')\n")
    monkeypatch.setattr(isolation, "_ENTER", refusing)
    problem = isolation.problem()
    assert problem.endswith("make namespaces (unshare: Operation not permitted)")
    assert len(problem.splitlines()) == 1
    isolation._find_method.cache_clear()


def test_state_directory_may_have_any_name(tmp_path: Path) -> None:
    """Also one with bytes that no text has."""
    directory = tmp_path / os.fsdecode(b"a b\tc\\d\n\xff")
    host = hosts.ensure(HostSpec(name="t4-1"), directory)
    assert hosts.run(host, "echo $PATH; pwd").stdout.split() == [ANY, b"/root"]


def test_broken_pipe_ends_a_command_as_on_a_host(tmp_path: Path) -> None:
    """Python ignores the signal, and what it starts would inherit that."""
    host = hosts.ensure(HostSpec(name="t4-1"), tmp_path)
    assert hosts.run(host, "yes | head -n 1; kill -PIPE $$; echo alive").stdout == b"y\n"


def test_root_of_a_host_lacks_rights_over_the_machine(tmp_path: Path) -> None:
    """An ordinary user's namespace has these rights over itself alone."""
    host = hosts.ensure(HostSpec(name="t4-1"), tmp_path)
    said = hosts.run(host, "grep CapBnd /.proc/self/status").stdout.split()
    left = {right for right in (16, 17, 22, 25) if int(said[1], 16) >> right & 1}
    assert isolation._find_method()[0] == "user" or not left
