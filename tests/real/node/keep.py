"""Process 1 of the machine: starts its programs, starts them again when they end, and reaps orphans."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PAUSE_SECONDS = 1


def keep(programs: Mapping[str, Sequence[str]], *, directory: Path, vital: str, pause: float = _PAUSE_SECONDS) -> None:
    """Keep programs running, as systemd's Restart=always does, until the vital one ends.

    A program that ends is started alone: what it had started lives on, as under KillMode=process.

    Args:
        programs: Command lines by name.
        directory: ``log/<name>.log`` gets their output, ``pids/<name>`` their process id within the machine.
        vital: The one that cannot be started again.
        pause: Seconds before a program is started again.
    """
    (directory / "pids").mkdir()
    names = {_start(name, command, directory): name for name, command in programs.items()}
    while True:
        ended, status = os.wait()
        name = names.pop(ended, None)
        if name is None:
            continue
        with (directory / "log" / "restarts.log").open("a") as log:
            log.write(f"{time.time():.0f} {name} ended: {os.waitstatus_to_exitcode(status)}\n")
        if name == vital:
            return
        time.sleep(pause)
        names[_start(name, programs[name], directory)] = name


def _start(name: str, command: Sequence[str], directory: Path) -> int:
    with (directory / "log" / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (directory / "pids" / name).write_text(str(started.pid))
    return _forgotten(started)


def _forgotten(process: subprocess.Popen[bytes]) -> int:
    """Return the process id, and keep the object from waiting for it or complaining: ``keep`` waits for them all."""
    process.returncode = 0
    return process.pid
