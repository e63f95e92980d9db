# ruff: noqa: ARG002  the methods of paramiko's ServerInterface, with its own names
"""SSH servers on the loopback interface: a host that runs commands, and a bastion that forwards to it."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import paramiko
import pytest

Entry = tuple[str, str, Any]
"""Which server, what happened there, and with what."""


@dataclass
class SshServer(paramiko.ServerInterface):
    """Accepts every key; forwards to ``target`` if it has one, else runs commands."""

    name: str
    log: list[Entry]
    target: int = 0
    forwards: list[int] = field(default_factory=list)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.log.append((self.name, "user", username))
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        self.log.append((self.name, "forward", destination))
        self.forwards.append(chanid)
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.log.append((self.name, "run", command.decode()))
        threading.Thread(target=_run, args=(channel, command.decode()), daemon=True).start()
        return True


def _run(channel: paramiko.Channel, command: str) -> None:
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=300)
    # The transport reads the client's answer to this after it has answered the request for the command.
    channel.get_transport().global_request("keepalive@openssh.com")
    channel.sendall(done.stdout)
    channel.send_exit_status(done.returncode)
    channel.close()


@contextmanager
def serving(server: SshServer) -> Iterator[int]:
    """Serve on a free port until the context ends; yields the port."""
    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, server, key), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: SshServer, key: paramiko.PKey) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the listener was closed
        threading.Thread(target=_session, args=(connection, server, key), daemon=True).start()


def _session(connection: socket.socket, server: SshServer, key: paramiko.PKey) -> None:
    transport = paramiko.Transport(connection)
    transport.add_server_key(key)
    transport.start_server(server=server)
    while transport.is_active():
        channel = transport.accept(0.5)
        if channel and channel.get_id() in server.forwards:
            onward = socket.create_connection(("127.0.0.1", server.target))
            for one, other in ((channel, onward), (onward, channel)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: Any, sink: Any) -> None:
    try:
        while data := source.recv(32768):
            sink.sendall(data)
    except OSError:
        pass  # the other side is gone, as it may be
    finally:
        source.close()
        sink.close()


@pytest.fixture
def log() -> list[Entry]:
    """What happened on the servers."""
    return []


@pytest.fixture
def bastion(log: list[Entry]) -> Iterator[int]:
    """Port of a bastion that leads to a host."""
    with serving(SshServer("host", log)) as host, serving(SshServer("bastion", log, host)) as port:
        yield port
