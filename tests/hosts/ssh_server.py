"""SSH servers on loopback, each in front of a simulated host, that behave or misbehave on request."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from gpu_provision.sandbox import hosts

_THROUGH_SUDO = re.compile(r"^(env SUDO_ASKPASS=\S+ PYINFRA_SUDO_PASSWORD=(?P<password>\S+) )?sudo -H (-n|-A -k) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    lets_in: bool = True  # whether it takes our key
    sudo_says: str = ""  # what sudo says instead of running a command; empty if it runs it
    password: str = ""  # what sudo asks for; empty if it asks for nothing
    cannot_write: str = ""  # what commands say that would write; empty if they do write
    hangs_at: str = ""  # pattern of a command at which the whole machine freezes: it answers nothing from then on
    dies_at: str = ""  # pattern of a command at which the machine goes away


GOOD = Conduct()


@dataclass(slots=True)
class Server:
    host: hosts.SimulatedHost
    conduct: Conduct
    key: paramiko.PKey
    listener: socket.socket
    over: threading.Event = field(default_factory=threading.Event)
    frozen: threading.Event = field(default_factory=threading.Event)
    transports: list[paramiko.Transport] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # what it was asked to run, as the shell got it

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def known(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.key.get_name()} {self.key.get_base64()}\n"

    def ran(self, words: str) -> bool:
        return any(words in command for command in self.commands)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                transport = paramiko.Transport(connection)
                transport.add_server_key(self.key)
                self.transports.append(transport)
                transport.start_server(event=threading.Event(), server=_Interface(self))

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):  # closing alone would leave the thread that accepts in its call
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for transport in self.transports:
            transport.close()

    def run(self, channel: paramiko.Channel, command: str) -> None:
        channel.makefile("rb").read()  # until the client, which has our answer by then, has no more to say
        self.commands.append(command)
        if self.conduct.hangs_at and re.search(self.conduct.hangs_at, command):
            self.frozen.set()
            return
        if self.conduct.dies_at and re.search(self.conduct.dies_at, command):
            self.close()
            return
        status, output, errors = self._run(command)
        with contextlib.suppress(OSError):
            channel.sendall(output)
            channel.sendall_stderr(errors)
            channel.send_exit_status(status)
            channel.close()

    def _run(self, command: str) -> tuple[int, bytes, bytes]:
        through = _THROUGH_SUDO.match(command)
        if through and (refusal := self._refusal(through["password"] or "")):
            return 1, b"", refusal.encode()
        if self.conduct.cannot_write and "put()" in command:
            return 1, b"", self.conduct.cannot_write.encode()
        done = hosts.run(self.host, _THROUGH_SUDO.sub("", command))
        return done.returncode, done.stdout, done.stderr

    def _refusal(self, password: str) -> str:
        if self.conduct.password and not password:
            return "sudo: a password is required\n"
        if self.conduct.password and self.conduct.password != password:
            return "Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt\n"
        return self.conduct.sudo_says


class _Interface(paramiko.ServerInterface):
    def __init__(self, server: Server) -> None:
        self._server = server

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - paramiko passes it
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002 - as above
        return paramiko.AUTH_SUCCESSFUL if self._server.conduct.lets_in else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002 - as above
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._server.run, args=(channel, command.decode()), daemon=True).start()
        return True

    def check_global_request(self, kind: str, msg: paramiko.Message) -> bool:  # noqa: ARG002 - as above
        if self._server.frozen.is_set():  # in the thread that would answer everything else, too
            self._server.over.wait()
        return False


@contextlib.contextmanager
def serving(host: hosts.SimulatedHost, conduct: Conduct = GOOD) -> Iterator[Server]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=20)
    server = Server(host, conduct, paramiko.ECDSAKey.generate(), listener)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()


def private_key(folder: Path) -> Path:
    path = folder / "key"
    paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    return path
