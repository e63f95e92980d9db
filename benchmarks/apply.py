"""What one ``gpu-provision apply`` needs on large clusters: seconds, processor, memory and requests.

    python -m benchmarks.apply [COUNT ...]        default: 5 200 1000 5000

On nodes that do at once what is asked of them (``benchmarks.crowd``), so that what is left is the tool and the API
server, which share the processors of this machine. A fresh run, one that changes nothing, and a plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.crowd import Crowd

_BOOKS = """
import json, resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
sys.exit(code)
"""  # a child of this process would have its memory counted as well, and that holds the API server


@dataclass(frozen=True)
class Figures:
    """Of one command; times in seconds, memory in MiB."""

    took: float
    processor: float
    peak: float
    requests: int

    def __str__(self) -> str:
        """Return a part of a line."""
        return f"{self.took:7.1f}  {self.processor:9.1f}  {self.peak:5.0f}  {self.requests:8}"


class Bench:
    """A crowd and an inventory of it."""

    def __init__(self, count: int, folder: Path) -> None:
        """Let all nodes join."""
        self.crowd, self.inventory = Crowd(folder), folder / "bench.yaml"
        self.crowd.join(*(f"gpu-{number:04}" for number in range(1, count + 1)))
        document = {
            "name": "bench",
            "cluster": {"kubeconfig": str(self.crowd.kubeconfig)},
            "pools": {"t4": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "gpu"}}},
        }
        self.inventory.write_text(json.dumps(document))  # which is YAML as well
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder)}

    def tool(self, *arguments: str) -> Figures:
        """Run gpu-provision, and read the kernel's books of it."""
        before, began = len(self.crowd.requests()), time.monotonic()
        command = [str(Path(sys.executable).parent / "gpu-provision"), *arguments, "-q", "-i", str(self.inventory)]
        run = subprocess.run(
            (sys.executable, "-c", _BOOKS, *command), env=self.environment, capture_output=True, text=True, check=False
        )
        if run.returncode:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr[-2000:]}")
        processor, peak = json.loads(run.stdout.splitlines()[-1])
        return Figures(time.monotonic() - began, processor, peak, len(self.crowd.requests()) - before)


def measure(count: int) -> None:
    """Print three lines."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(count, Path(folder))
        try:
            for name, command in (
                ("fresh", ("apply", "--yes", "--cluster-only")),
                ("again", ("apply", "--yes", "--cluster-only")),
                ("plan", ("plan", "--cluster-only")),
            ):
                print(f"{count:5}  {name:5}  {bench.tool(*command)}", flush=True)
        finally:
            bench.crowd.close()


def main() -> None:
    """Measure every number of nodes and print a table."""
    print("nodes  run    seconds  processor    MiB  requests", flush=True)
    for count in [int(word) for word in sys.argv[1:]] or [5, 200, 1000, 5000]:
        measure(count)


if __name__ == "__main__":
    main()
