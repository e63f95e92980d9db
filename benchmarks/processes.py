"""Commands and processes, with the processor time and memory that they use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

BIN = Path(sys.executable).parent
TOOL = str(BIN / "gpu-provision")
PATIENCE_SECONDS = 3600.0
_USE = """
import json, resource, subprocess, sys, time
began = time.monotonic()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
sys.exit(code)
"""  # a process between: the kernel adds the memory of the process that forks, which has the API server in it


@dataclass(frozen=True)
class Use:
    """What a command or process used.

    Attributes:
        seconds: On the clock.
        processor: Seconds of a processor.
        peak: MiB of memory, at most.
        resident: MiB of memory, now; 0 for a command that has ended.
    """

    seconds: float
    processor: float
    peak: float
    resident: float = 0.0

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return what a process has used up to now."""
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        sizes = {line[0]: int(line[1]) / 1024 for line in lines if line[0] in {"VmRSS:", "VmHWM:"}}
        processor = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), processor, sizes["VmHWM:"], sizes["VmRSS:"])


def command(*words: str, environment: Mapping[str, str] | None = None) -> Use:
    """Run a command to its end; ends the program if it fails."""
    child = (sys.executable, "-c", _USE, *words)
    done = subprocess.run(child, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
    return Use(*json.loads(done.stdout.splitlines()[-1]))


def until(condition: Callable[[], Any], *, pause: float = 0.2, process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition, asked every ``pause`` seconds; ends the program if it stays false or the process ends."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up or (process and process.poll() is not None):
            sys.exit("a condition did not become true" if not process else f"{process.args} ended or waits forever")
        time.sleep(pause)


def busy_seconds() -> tuple[float, float]:
    """Return seconds of all processors in use and idle, since this machine booted."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, rate = sum(ticks[3:5]), os.sysconf("SC_CLK_TCK")  # idle, and waiting for disks
    return (sum(ticks) - idle) / rate, idle / rate
