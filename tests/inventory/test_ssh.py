# ruff: noqa: ARG002  the methods of paramiko's ServerInterface, with its own names
"""Nodes behind a bastion: the SSH configuration that leads pyinfra there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest

from gpu_provision.inventory import groups
from gpu_provision.inventory.pyinfra_inventory import ssh_config
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.hosts import SshOptions
from gpu_provision.model.inventory import Node


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is written inside the test's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


INVENTORY = """
name: stack
cluster: {{context: prod}}
ssh: {{user: ubuntu, key: ./key, known_hosts_file: ./known, bastion: "jump@127.0.0.1:{port}", sudo: false}}
pools: {{t4: {{gpu: {{model: T4, count: 1}}}}}}
nodes:
  - {{name: t4-1, pool: t4, address: 10.99.0.1, ssh: {{port: 2222}}}}
  - {{name: t4-2, pool: t4, address: 10.99.0.2}}
"""


def write(directory: Path, port: int = 22) -> Path:
    """Write an inventory whose bastion listens on a port, with a key and a pyinfra inventory beside it."""
    file = directory / "stack.yaml"
    file.write_text(INVENTORY.format(port=port), encoding="utf-8")
    script = "from gpu_provision.inventory import hosts_of as _hosts_of\nglobals().update(_hosts_of(__file__))\n"
    file.with_suffix(".py").write_text(script, encoding="utf-8")
    paramiko.ECDSAKey.generate().write_private_key_file(str(directory / "key"))
    (directory / "known").touch()
    return file


def test_each_node_and_each_bastion_has_one_entry() -> None:
    """What the inventory says comes first, then the user's own file, then a fallback for host keys."""
    ssh = SshOptions(bastion="jump@bastion.example.com:2200", key="/keys/id")
    nodes = [Node(name="t4-1", pool="t4", address="10.0.0.1", ssh=ssh), Node(name="t4-2", pool="t4", ssh=ssh)]
    assert ssh_config(nodes).splitlines() == [
        "Host t4-1",
        "  HostName 10.0.0.1",
        "  ProxyJump jump@bastion.example.com:2200",
        "Host t4-2",
        "  HostName t4-2",
        "  ProxyJump jump@bastion.example.com:2200",
        "Host bastion.example.com",
        "  IdentityFile /keys/id",
        "Host *",
        "  Include ~/.ssh/config",
        "Host bastion.example.com",
        "  StrictHostKeyChecking accept-new",
    ]


def test_the_file_is_private_and_written_once(tmp_path: Path) -> None:
    """It holds no secret, but it decides where connections go."""
    file = write(tmp_path)
    data = groups(file)["nodes"][0][0][1]
    written = Path(data["ssh_config_file"])
    before = written.stat()
    assert data["ssh_hostname"] == "t4-1"
    assert before.st_mode & 0o077 == 0
    groups(file)
    assert written.stat().st_ino == before.st_ino
    assert [each.name for each in written.parent.iterdir()] == [written.name]


def test_without_a_bastion_nothing_is_written(tmp_path: Path, state: Path) -> None:
    """Then the user's own SSH configuration is all there is."""
    file = write(tmp_path)
    file.write_text(file.read_text().replace(', bastion: "jump@127.0.0.1:22"', ""), encoding="utf-8")
    assert "ssh_config_file" not in groups(file)["nodes"][0][0][1]
    assert not state.exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, state: Path) -> None:
    """As in a container with a read-only home."""
    state.write_text("in the way")
    with pytest.raises(ProvisionError) as raised:
        groups(write(tmp_path))
    assert raised.value.findings[0].code == "GP165"


class Bastion(paramiko.ServerInterface):
    """Accepts every key, notes what it is asked for, and forwards to nowhere."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.asked.append(username)
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_direct_tcpip_request(self, _channel: int, _origin: object, destination: tuple[str, int]) -> int:
        self.asked.append(destination)
        return paramiko.OPEN_FAILED_CONNECT_FAILED

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                transport = paramiko.Transport(listener.accept()[0])
                transport.add_server_key(paramiko.ECDSAKey.generate())
                transport.start_server(server=self)


def test_pyinfra_goes_through_the_bastion(tmp_path: Path) -> None:
    """Stock pyinfra, real SSH: user, port and address are what the inventory says, without a question."""
    bastion = Bastion()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=bastion.serve, args=(listener,), daemon=True).start()
        file = write(tmp_path, listener.getsockname()[1])
        pyinfra = Path(sys.executable).with_name("pyinfra")
        done = subprocess.run(
            [pyinfra, "-y", file.with_suffix(".py"), "--limit", "gpu", "exec", "--", "echo", "through"],
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        listener.shutdown(socket.SHUT_RDWR)
    assert set(bastion.asked) == {"jump", ("10.99.0.1", 2222), ("10.99.0.2", 22)}, done.stderr
