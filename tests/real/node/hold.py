"""Holds a machine: while this program lives the machine does, and nothing of it stays behind.

python -m tests.real.node.hold DIRECTORY
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from tests.real.node import cgroups

_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    with cgroups.made() as folders:
        boot = [sys.executable, "-m", "tests.real.node.boot", sys.argv[1], *map(str, folders)]
        command = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES, *boot]
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[3])
        try:
            machine.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                machine.kill()
            machine.wait()


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
