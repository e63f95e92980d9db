"""Commands of gpu-provision that begin at once: forks of a process that has imported all of them already.

A scenario types dozens, and each would spend more on importing than on what it is asked. Arguments, environment,
working directory, outputs and exit code are a command's own, as ever. What a scenario starts in the background, or has
pyinfra run, is a process from its start; so are the commands of tests/test_docs.py and tests/cli.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.answers import Answer
from tests.fork_server import MAX_REQUEST_BYTES, ForkServer
from tests.hosts.warm import Forge as Workers

_KILLED = -signal.SIGKILL
_PACKAGES = (
    *("adopt", "api", "cli", "components", "destroy", "history", "inventory", "kube", "nodes", "operator", "output"),
    *("planning", "reconcile", "rollout", "sandbox"),
)
_LIBRARIES = ("jsonschema", "rich.live", "rich.table", "kubernetes.client.exceptions", "kubernetes.stream.ws_client")


class Forge(ForkServer):
    """Runs commands, in forks of a process that starts with the first of them; to be used by one thread at a time."""

    def __init__(self) -> None:
        super().__init__("tests.scenarios.warm")

    def run(
        self, words: Sequence[str], *, folder: Path, environment: dict[str, str], stdin: str | None, seconds: float
    ) -> Answer:
        request = {"words": [*words], "environment": environment, "folder": str(folder)}
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write((stdin or "").encode())
            given.seek(0)
            code = self._code(request, [given.fileno(), out.fileno(), err.fileno()], seconds)
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


class _SharedWorkers(Workers):
    """Makes workers of the host phase for many commands, which have one line to the process that makes them."""

    def __init__(self, turn: Path) -> None:
        """Start the process at once; the file says whose turn it is."""
        super().__init__()
        self._turn = turn
        _ = self.line

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Keep the other commands from the line."""
        with self._turn.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _serve(line: socket.socket) -> None:
    _import_all()
    from gpu_provision.hosts import runner  # noqa: PLC0415 - only this process and its forks may be changed
    from gpu_provision.sandbox import lifecycle  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, contextlib.closing(_SharedWorkers(Path(folder) / "turn")) as workers:
        runner._worker = workers.worker
        lifecycle._launch = _fork_sandbox
        gc.freeze()
        while True:
            asked, files, _, _ = socket.recv_fds(line, MAX_REQUEST_BYTES, 4)
            _bury()
            if not asked:
                return
            if not (pid := os.fork()):
                line.close()
                _command(json.loads(asked), files)
            for file in files:
                os.close(file)
            line.send(str(pid).encode())


def _import_all() -> None:
    """Import what commands and sandboxes import, also what they import only where they need it."""
    for name in _PACKAGES:
        package = import_module(f"gpu_provision.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    for name in _LIBRARIES:
        import_module(name)


def _fork_sandbox(command: list[str], *, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Do as a new process of the sandbox's server: return once it has detached itself, or has failed."""
    from gpu_provision.sandbox import server  # noqa: PLC0415 - imported long ago

    with tempfile.TemporaryFile() as errors:
        if not (pid := os.fork()):
            os.dup2(errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.closerange(3, 1024)  # among them the command's locks, and the pipe that says that it has ended
            _end_as(lambda: server.main(command[3:]), environment)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, stderr=errors.read())


def _bury() -> None:
    """Take note of all commands that have ended, so that their time is accounted for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _command(request: dict[str, Any], files: list[int]) -> NoReturn:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    sys.argv = request["words"]
    _end_as(_exit_code, request["environment"], answer=files[3])


def _end_as(work: Callable[[], int], environment: dict[str, str], *, answer: int | None = None) -> NoReturn:
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


def _exit_code() -> int:
    from gpu_provision.cli import main  # noqa: PLC0415 - imported long ago

    main(sys.argv[1:])
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
