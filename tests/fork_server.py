"""A process that has imported slow modules and forks test processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from functools import cached_property
from pathlib import Path

MAX_REQUEST_BYTES = 1 << 18
"""Maximum size of a request."""

_CHECKOUT = Path(__file__).resolve().parents[1]


class ForkServer:
    def __init__(self, module: str) -> None:
        """Configure the server: the module serves the socket with the given number until it is closed."""
        self._module, self._ended = module, contextlib.ExitStack()

    def close(self) -> None:
        self._ended.close()

    @cached_property
    def line(self) -> socket.socket:
        """Socket to the process, for packets with file descriptors."""
        local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", self._module, str(remote.fileno())]
        process = subprocess.Popen(command, cwd=_CHECKOUT, stdin=subprocess.DEVNULL, pass_fds=[remote.fileno()])
        remote.close()
        self._ended.callback(process.wait)
        self._ended.callback(local.close)  # runs first: ends the process
        return local
