"""Commands of gpu-provision that begin at once: forks of a process that has imported all of them already.

A scenario types dozens, and each would spend more on importing than on what it is asked. Arguments, environment,
working directory, outputs and exit code are a command's own, as ever. What a scenario starts in the background is a
process from its start; so are the commands of tests/test_docs.py and tests/cli.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.fork_server import CommandServer, end_as, serve_commands
from tests.hosts.warm import Forge as Workers

_PACKAGES = (
    *("adopt", "api", "cli", "components", "destroy", "history", "inventory", "kube", "nodes", "operator", "output"),
    *("planning", "reconcile", "rollout", "sandbox"),
)
_LIBRARIES = ("jsonschema", "rich.live", "rich.table", "kubernetes.client.exceptions", "kubernetes.stream.ws_client")


class Forge(CommandServer):
    """Runs commands of gpu-provision."""

    def __init__(self) -> None:
        super().__init__("tests.scenarios.warm")


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
    _read_all()
    from gpu_provision.hosts import runner  # noqa: PLC0415 - only this process and its forks may be changed
    from gpu_provision.sandbox import lifecycle  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, contextlib.closing(_SharedWorkers(Path(folder) / "turn")) as workers:
        runner._worker = workers.worker
        lifecycle._launch = _fork_sandbox
        gc.freeze()
        serve_commands(line, _exit_code)


def _read_all() -> None:
    """Read what each command and each sandbox reads of the package, and keep for as long as its process lives."""
    from gpu_provision.inventory import loader  # noqa: PLC0415 - imported long ago, as the others
    from gpu_provision.model.codes import meanings  # noqa: PLC0415
    from gpu_provision.sandbox.apiserver.resources import builtin_resources  # noqa: PLC0415
    from gpu_provision.sandbox.state import source_digest  # noqa: PLC0415

    for read in (meanings, builtin_resources, source_digest):
        read()
    loader.load(Path(__file__).resolve().parents[2] / "inventories/sandbox.yaml")


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
            end_as(lambda: server.main(command[3:]), environment)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, stderr=errors.read())


def _exit_code() -> int:
    from gpu_provision.cli import main  # noqa: PLC0415 - imported long ago

    main(sys.argv[1:])
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
