"""Simulated hosts under stock pyinfra: commands, files, sudo, reboots, and hosts that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connectors.conftest import Pyinfra

INVENTORY = """
nodes = [(f"@sandbox/{name}", {"sandbox_fleet": "mine.yaml"}) for name in NAMES]
cluster = ["@cluster/sandbox"]
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Callable[..., str]:
    def write(*names: str) -> str:
        (tmp_path / "inventory.py").write_text(INVENTORY.replace("NAMES", repr(list(names))))
        return "inventory.py"

    return write


def test_commands_run_on_the_host(sandbox: Path, pyinfra: Pyinfra, inventory: Callable[..., str]) -> None:
    done = pyinfra(inventory("t4-1", "t4-2"), "--limit", "nodes", "exec", "--", "hostname > /etc/test; uname -r")
    assert done.returncode == 0
    assert done.stdout.count("5.15.0-122-generic") == 2
    assert (sandbox / "t4-1/etc/test").read_text() == "t4-1\n"
    assert (sandbox / "t4-2/etc/test").read_text() == "t4-2\n"


def test_limit_takes_a_nodes_own_name(sandbox: Path, pyinfra: Pyinfra, inventory: Callable[..., str]) -> None:
    pyinfra(inventory("t4-1", "t4-2"), "--limit", "t4-2", "exec", "--", "true")
    assert [host.name for host in sandbox.iterdir()] == ["t4-2"]


@pytest.mark.parametrize("sudo", ["false", "true"])
@pytest.mark.usefixtures("sandbox")
def test_files_go_there_and_back(pyinfra: Pyinfra, inventory: Callable[..., str], tmp_path: Path, sudo: str) -> None:
    content = bytes(range(256))
    (tmp_path / "source").write_bytes(content)
    where = inventory("t4-1")
    first, second = (
        pyinfra(where, "--limit", "nodes", "files.put", "src=source", "dest=/etc/a file", f"_sudo={sudo}")
        for _ in range(2)
    )
    assert "Success" in first.stdout
    assert "No changes" in second.stdout
    pyinfra(where, "--limit", "nodes", "files.get", "src=/etc/a file", "dest=back", f"_sudo={sudo}")
    assert (tmp_path / "back").read_bytes() == content


@pytest.mark.usefixtures("sandbox")
def test_reboot_operation_of_pyinfra_works(pyinfra: Pyinfra, inventory: Callable[..., str]) -> None:
    done = pyinfra(inventory("t4-1"), "--limit", "nodes", "server.reboot", "delay=2", "reboot_timeout=120")
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(("name", "reason"), [("away-1", "unreachable"), ("t4-9", "mine has no node t4-9")])
def test_host_that_is_not_there_is_a_connection_error(
    pyinfra: Pyinfra, inventory: Callable[..., str], name: str, reason: str
) -> None:
    done = pyinfra(inventory("t4-1", name), "--exclude", "cluster", "exec", "--", "echo went on")
    assert done.returncode == 1
    assert reason in done.stdout
    assert "went on" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.usefixtures("sandbox", "without_isolation")
def test_machine_without_isolation_leaves_simulated_hosts_out(
    pyinfra: Pyinfra, inventory: Callable[..., str], tmp_path: Path
) -> None:
    """One line says so, and the other hosts, such as the cluster, have their run."""
    (tmp_path / "deploy.py").write_text("")
    done = pyinfra(inventory("t4-1", "t4-2"), "deploy.py")
    assert done.returncode == 0
    assert done.stdout.count("The sandbox's hosts are skipped: this machine does not let") == 1
    assert "[@cluster/sandbox] Connected" in done.stdout
    assert "@sandbox/t4-1" not in done.stdout
