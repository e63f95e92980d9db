"""A process that has imported slow modules and forks test processes; one whose forks are commands."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from tests.answers import Answer

# Before gevent has its own, which wait for an event loop.
_fork, _waitpid = os.fork, os.waitpid
_KILLED = -signal.SIGKILL

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


class CommandServer(ForkServer):
    """Runs commands in forks of a process that starts with the first; for one thread at a time."""

    one_output = False
    """Whether the answer has the standard error within the standard output, in order."""

    def run(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: dict[str, str],
        stdin: str | None = None,
        seconds: float,
    ) -> Answer:
        """Run a command. Raises TimeoutExpired."""
        request = {"words": [*words], "environment": environment, "folder": str(folder)}
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write((stdin or "").encode())
            given.seek(0)
            code = self._code(
                request, [given.fileno(), out.fileno(), (out if self.one_output else err).fileno()], seconds
            )
            return Answer(code, _text(out), _text(err))

    def _code(self, request: dict[str, Any], files: list[int], seconds: float) -> int:
        line = self.line
        told, tells = os.pipe()
        with os.fdopen(told, "rb") as reader:
            socket.send_fds(line, [json.dumps(request).encode()], [*files, tells])
            os.close(tells)
            pid = int(line.recv(MAX_REQUEST_BYTES))
            if not select.select([reader], [], [], seconds)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(request["words"], seconds)
            return int(reader.read() or _KILLED)


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


def serve_commands(line: socket.socket, work: Callable[[], int]) -> None:
    """Fork a process for each command that the socket brings: it does the work and exits with the result."""
    while True:
        asked, files, _, _ = socket.recv_fds(line, MAX_REQUEST_BYTES, 4)
        bury()
        if not asked:
            return
        if not (pid := _fork()):
            line.close()
            _command(json.loads(asked), files, work)
        for file in files:
            os.close(file)
        line.send(str(pid).encode())


def bury() -> None:
    """Take note of all forks that have ended, so that their time is accounted for."""
    with contextlib.suppress(ChildProcessError):
        while _waitpid(-1, os.WNOHANG)[0]:
            pass


def _command(request: dict[str, Any], files: list[int], work: Callable[[], int]) -> NoReturn:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    sys.argv = request["words"]
    end_as(work, request["environment"], answer=files[3])


def end_as(work: Callable[[], int], environment: dict[str, str], *, answer: int | None = None) -> NoReturn:
    """Be, in a fork, a process that does this and ends; the answer gets its exit code."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        atexit._clear()
        code = work()
        atexit._run_exitfuncs()
    except SystemExit as done:
        code = int(done.code or 0)
    except BaseException:  # noqa: BLE001 - as the interpreter does for a process that was not forked
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if answer is not None:
            os.write(answer, str(code).encode())
        os._exit(code)
