"""How a run scales: fresh cluster, no-change run and plan, at several numbers of simulated nodes.

    python -m benchmarks.converge [COUNT ...]        default: 4 200

Every figure is of whole commands against one sandbox per count. Ratios are taken within this run: the fresh run
against the critical path of one node (the run with the fewest nodes), the no-change run against
``kubectl apply --server-side`` of the same manifests.
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

BIN = Path(sys.executable).parent
INVENTORY = """\
name: bench
cluster: {{sandbox: nodes-{count}}}
release: "26.7.0"
pools:
  t4: {{gpu: {{model: T4, count: 1}}}}
nodes:
{nodes}
"""


@dataclass(frozen=True)
class Figures:
    """What was measured at one number of nodes; times in seconds."""

    nodes: int
    fresh: float
    fresh_requests: int
    again: float
    again_requests: int
    writes_again: int
    plan: float
    kubectl: float


class Bench:
    """One sandbox with its inventory."""

    def __init__(self, count: int, folder: Path) -> None:
        """Write the inventory and start the sandbox."""
        self.count, self.folder = count, folder
        self.environment = {**os.environ, "GPU_PROVISION_SANDBOX_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        self.inventory = folder / "bench.yaml"
        width = max(3, len(str(count)))  # as the fleet nodes-<count> names them
        nodes = "\n".join(f"  - {{name: gpu-{n:0{width}}, pool: t4}}" for n in range(1, count + 1))
        self.inventory.write_text(INVENTORY.format(count=count, nodes=nodes))
        self.run(str(BIN / "gpu-provision"), "sandbox", "up", "--fleet", f"nodes-{count}")

    def run(self, *command: str) -> float:
        """Run a command and return the seconds it took."""
        began = time.perf_counter()
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return time.perf_counter() - began

    def tool(self, *arguments: str) -> float:
        """Run gpu-provision on the inventory."""
        return self.run(str(BIN / "gpu-provision"), *arguments, "-i", str(self.inventory))

    def requests(self) -> list[dict[str, object]]:
        """Every request of gpu-provision so far."""
        log = self.folder / f"nodes-{self.count}" / "requests.log"
        found = (json.loads(line) for line in log.read_text().splitlines())
        return [request for request in found if str(request["agent"]).startswith("gpu-provision")]

    def kubectl_apply(self) -> float:
        """Apply the rendered objects with kubectl, as somebody without this tool would, when nothing changes."""
        rendered = self.folder / "rendered"
        self.tool("render", "--output", str(rendered))
        for partial in [*rendered.rglob("node_labels*"), *rendered.rglob("*validation*")]:
            if partial.is_file():
                partial.unlink()
        config = self.folder / f"nodes-{self.count}" / "kubeconfig"
        command = ("kubectl", "--kubeconfig", str(config), "apply", "--server-side", "--force-conflicts", "-R")
        self.run(*command, "-f", str(rendered))
        return self.run(*command, "-f", str(rendered))

    def measure(self) -> Figures:
        """Run everything once."""
        fresh = self.tool("apply", "--yes", "--cluster-only", "-q")
        before = len(self.requests())
        again = self.tool("apply", "--yes", "--cluster-only", "-q")
        since = self.requests()[before:]
        writes = [item for item in since if item["verb"] != "GET" and not item["dry_run"]]
        plan = self.tool("plan", "--cluster-only", "-q")
        return Figures(self.count, fresh, before, again, len(since), len(writes), plan, self.kubectl_apply())

    def down(self) -> None:
        """End the sandbox."""
        self.run(str(BIN / "gpu-provision"), "sandbox", "down", "--fleet", f"nodes-{self.count}")


def main() -> None:
    """Measure every count and print a table with ratios."""
    figures = []
    for count in [int(word) for word in sys.argv[1:]] or [4, 200]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(count, Path(folder))
            try:
                figures.append(bench.measure())
            finally:
                bench.down()
    one_node = figures[0].fresh
    print("nodes  fresh s  x one node  requests  per node  again s  requests  writes  plan s  x kubectl apply")
    for row in figures:
        print(
            f"{row.nodes:5}  {row.fresh:7.1f}  {row.fresh / one_node:10.2f}  {row.fresh_requests:8}"
            f"  {row.fresh_requests / row.nodes:8.1f}  {row.again:7.2f}  {row.again_requests:8}"
            f"  {row.writes_again:6}  {row.plan:6.2f}  {row.again / row.kubectl:15.2f}"
        )


if __name__ == "__main__":
    main()
