"""A process that has imported what others would each spend their time on, and forks them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from functools import cached_property
from pathlib import Path

LONGEST_REQUEST = 1 << 18
"""Bytes of what is asked of it at once."""

_CHECKOUT = Path(__file__).resolve().parents[1]


class Foundry:
    """Starts the process when it is first asked."""

    def __init__(self, module: str) -> None:
        """Start nothing yet; the module serves the socket whose number it is given until that is closed."""
        self._module, self._ended = module, contextlib.ExitStack()

    def close(self) -> None:
        """End the process."""
        self._ended.close()

    @cached_property
    def line(self) -> socket.socket:
        """What leads to the process: packets, with files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", self._module, str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=_CHECKOUT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self._ended.callback(process.wait)
        self._ended.callback(ours.close)  # first: it is how the process learns that it is over
        return ours
