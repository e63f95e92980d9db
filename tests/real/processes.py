"""Programs that end with us, however we end, and that listen on a port that was free."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 180
_TAKEN = "address already in use"
_ATTEMPTS = 5
_LINES = 15
_COLLECTS_SELDOM = {"GOGC": "400"}
"""Programs in Go, such as all of Kubernetes': memory is plenty here, and processor time is not."""
_ONLY_WHILE_OUR_CHILD = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'
"""A parent that died before the death signal was asked for sends none."""


Command = Callable[[int], Sequence[str]]
Ready = Callable[[int], bool]


class NotReadyError(RuntimeError):
    """A program ended, or did not get ready in time; the message has the end of its log."""


@contextlib.contextmanager
def process(
    log: Path, command: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file; it ends with the block, or with us, however we end.

    The kernel binds it to the thread that starts it: that has to be one that lasts, such as the main thread.
    """
    bound = ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", _ONLY_WHILE_OUR_CHILD, "sh", str(os.getpid())]
    with log.open("ab") as output:
        running = subprocess.Popen(
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us, who stop it in order
        )
    try:
        yield running
    finally:
        _stop(running)


def _stop(running: subprocess.Popen[bytes]) -> None:
    running.terminate()
    try:
        running.wait(10)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait(10)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that listens; its command line for a port may take more free ports itself."""

    log: Path
    command: Command
    ready: Ready


def listening(program: Program, running: contextlib.ExitStack, *, port: int = 0) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a program and wait until it serves; return its port, a free one unless given, and the process.

    A free port may be taken before the program takes it. It then ends and gets another one. A given port it gets
    again: who has it may be a connection that passes.
    """
    for _ in range(_ATTEMPTS):
        chosen, seen = port or free_port(), _size(program.log)
        if started := _started(program, chosen, running):
            return chosen, started
        if _TAKEN not in program.log.read_text(errors="replace")[seen:].lower():
            break
    raise NotReadyError(_complaint(program.log))


def _started(program: Program, port: int, running: contextlib.ExitStack) -> subprocess.Popen[bytes] | None:
    """Start a program; let it run on only if it serves at this port."""
    with contextlib.ExitStack() as attempt:
        environment = {**os.environ, **_COLLECTS_SELDOM}
        started = attempt.enter_context(process(program.log, program.command(port), environment=environment))
        if not await_ready(lambda: program.ready(port), started):
            return None
        running.enter_context(attempt.pop_all())
        return started


def await_ready(ready: Callable[[], bool], *needed: subprocess.Popen[bytes]) -> bool:
    """Wait until something is ready; False if a program that it needs ended, or in READY_SECONDS."""
    give_up = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up and all(program.poll() is None for program in needed):
        if ready():
            return True
        time.sleep(0.1)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _size(log: Path) -> int:
    return len(log.read_text(errors="replace")) if log.exists() else 0


def _complaint(log: Path) -> str:
    last = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES:])
    return f"{log.stem} did not get ready; the end of {log}:\n{last}"
