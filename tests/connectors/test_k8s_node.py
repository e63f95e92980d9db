"""Nodes as pyinfra hosts, under stock pyinfra: what users see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.kube.node_shell import CLIENT
from gpu_provision.sandbox import lifecycle
from tests.connectors.conftest import Pyinfra
from tests.connectors.node_server import NodeServer, node_server
from tests.kube.conftest import kubeconfig


@pytest.fixture
def server() -> Iterator[NodeServer]:
    with node_server() as made:
        yield made


@pytest.fixture
def inventory(server: NodeServer, tmp_path: Path) -> str:
    data = {"k8s_kubeconfig": str(kubeconfig(tmp_path, server.url))}
    (tmp_path / "inventory.py").write_text(f"nodes = {[('@k8s-node/n1', data)]!r}\n")
    return "inventory.py"


def test_commands_run_on_the_node_and_nothing_stays(server: NodeServer, pyinfra: Pyinfra, inventory: str) -> None:
    done = pyinfra(inventory, "exec", "--", r"echo out; printf 'bell \a\n'; echo err >&2")
    assert done.returncode == 0, done.stdout
    assert "[@k8s-node/n1] out\n" in done.stdout
    assert "[@k8s-node/n1] err\n" in done.stdout
    assert "[@k8s-node/n1] bell \\x07\n" in done.stdout, "what steers a terminal is shown"
    assert len(server.made) == 1
    assert server.pods == {}


def test_the_pod_of_a_killed_client_goes_with_the_next_run(
    server: NodeServer, pyinfra: Pyinfra, inventory: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", _PRINTS_ITS_IDENTITY], capture_output=True, text=True, check=True)
    metadata = {
        "name": "left",
        "namespace": "kube-system",
        "uid": "left",
        "annotations": {CLIENT: killed.stdout.strip()},
    }
    server.pods["left"] = {"metadata": metadata, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}
    assert pyinfra(inventory, "exec", "--", "true").returncode == 0
    assert server.pods == {}


_PRINTS_ITS_IDENTITY = "from gpu_provision.kube.lease import process_identity; print(process_identity())"


def test_command_that_fails_fails_its_host(server: NodeServer, pyinfra: Pyinfra, inventory: str) -> None:
    done = pyinfra(inventory, "exec", "--", "exit 3")
    assert done.returncode == 1
    assert len(server.made) == 1
    assert server.pods == {}


def test_operations_of_pyinfra_change_nothing_twice(pyinfra: Pyinfra, inventory: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 999
    (tmp_path / "source").write_bytes(content)
    put = ("files.put", "src=source", f"dest={tmp_path}/a file")
    first, second = (pyinfra(inventory, *put) for _ in range(2))
    assert "Success" in first.stdout
    assert "No changes" in second.stdout
    pyinfra(inventory, "files.get", f"src={tmp_path}/a file", "dest=back")
    assert (tmp_path / "back").read_bytes() == content


def test_stdin_success_codes_and_timeouts_are_as_on_any_host(pyinfra: Pyinfra, inventory: str, tmp_path: Path) -> None:
    (tmp_path / "deploy.py").write_text(
        "from pyinfra.operations import server\n"
        f"server.shell(['cat > {tmp_path}/read'], name='reads', _stdin=['one', 'two'])\n"
        "server.shell(['exit 4'], name='accepted', _success_exit_codes=[0, 4])\n"
        "server.shell(['sleep 600'], name='slow', _timeout=1)\n"
    )
    done = pyinfra(inventory, "deploy.py")
    assert (tmp_path / "read").read_text() == "one\ntwo\n"
    assert done.stdout.count("Success") == 2
    assert "timed out after 1s" in done.stdout
    assert "Traceback" not in done.stdout


def test_lost_connection_fails_the_host_with_a_finding(server: NodeServer, pyinfra: Pyinfra, inventory: str) -> None:
    server.drop = True
    done = pyinfra(inventory, "exec", "--", "true")
    assert done.returncode == 1
    assert "GP692" in done.stdout
    assert "whether the command goes on" in done.stdout
    assert "Traceback" not in done.stdout


def test_simulated_pods_of_a_sandbox_have_no_shell(pyinfra: Pyinfra, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("nodes:\n- {name: t4-1, gpu: {model: T4, count: 1}}\n")
    sandbox = lifecycle.up(str(tmp_path / "fleet.yaml"), directory=tmp_path / "state")
    try:
        (tmp_path / "inventory.py").write_text(
            f"nodes = [('@k8s-node/t4-1', {{'k8s_kubeconfig': {str(sandbox.kubeconfig)!r}}})]\n"
        )
        done = pyinfra("inventory.py", "exec", "--", "true")
    finally:
        lifecycle.down(directory=tmp_path / "state")
    assert done.returncode == 1
    assert done.stdout.count("GP69") == 1
    assert "GP692 t4-1: no command can be run on this node" in done.stdout
    assert "the sandbox's pods are simulated and have no processes" in done.stdout
