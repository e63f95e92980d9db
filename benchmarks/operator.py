"""What the controller needs: of memory, processor and requests at rest, and of time for nodes that join.

    python -m benchmarks.operator [--rest SECONDS] [--joining NUMBER] [COUNT ...]      default: 100 1000 5000

For each COUNT a stack is declared on a cluster of so many GPU nodes, which ``benchmarks.crowd`` has: they do at once
what is asked of them. Then the controller is watched at rest for a minute; for another one in which each kubelet
reports as often as it does in five minutes; while five more nodes join, one after the other; while somebody edits a
DaemonSet with kubectl; while a component stops being ready everywhere, which makes the longest status; and while
somebody edits another DaemonSet meanwhile. Last, ``--joining`` nodes join a stack of ten within a minute.

The controller is one process, the API server and this program another; both share the processors of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from tests.crowd import Crowd, Times
from gpu_provision.operator.definition import definition

STACK = {
    "apiVersion": "gpu-provision.io/v1alpha1",
    "kind": "GPUStack",
    "metadata": {"name": "prod"},
    "spec": {"pools": {"t4": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "gpu"}}}},
}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
PATIENCE_SECONDS = 1800.0
JOIN_SECONDS, KUBELET_SECONDS = 60.0, 300.0
SINGLE, EDITS = 5, 3
SETTLED_SECONDS = 3.0  # after which a controller of thousands has looked at what came last
EDITED = "nvidia-container-toolkit-daemonset", "gpu-feature-discovery"


@dataclass(frozen=True)
class Use:
    """What a process has used: seconds of a processor up to now; MiB of memory now, and at most."""

    processor: float
    resident: float
    peak: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Read the kernel's books."""
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        sizes = {line[0]: int(line[1]) / 1024 for line in lines if line[0] in {"VmRSS:", "VmHWM:"}}
        return cls(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), sizes["VmRSS:"], sizes["VmHWM:"])


class Bench:
    """A crowd, and a controller that looks after it."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        """Start both and declare the stack."""
        self.folder, self.crowd = folder, Crowd(folder)
        self.crowd.join(*nodes)
        for item in (NAMESPACE, definition()):
            self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(item))
        self.until(lambda: self.kubectl("get", "gpustacks", check=False) is not None)
        self.log = (folder / "controller.log").open("w")
        command = (str(Path(sys.executable).parent / "gpu-provision"), "operator", "run", "--port", "0")
        self.controller = subprocess.Popen(
            (*command, "--kubeconfig", str(self.crowd.kubeconfig)),
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
            stdout=self.log,
            stderr=self.log,
        )
        self.began = time.monotonic()
        self.kubectl("apply", "-f", "-", stdin=json.dumps(STACK))

    def close(self) -> None:
        """End both."""
        self.controller.terminate()
        self.controller.wait()
        self.log.close()
        self.crowd.close()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str | None:
        """Run kubectl as the administrator; None if it fails and need not succeed."""
        command = ("kubectl", "--kubeconfig", str(self.crowd.kubeconfig), "--request-timeout", "60s", *arguments)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode and check:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return None if done.returncode else done.stdout

    @property
    def status(self) -> dict[str, Any]:
        """Return what the stack says of itself."""
        stack = json.loads(self.kubectl("get", "gpustack", "prod", "-o", "json") or "{}")
        found: dict[str, Any] = stack.get("status") or {}
        return found

    def is_ready(self, number: int) -> bool:
        """Whether all of so many nodes are."""
        return self.status.get("nodes", {}).get("summary") == f"{number}/{number}" and any(
            each["type"] == "Ready" and each["status"] == "True" for each in self.status["conditions"]
        )

    def until(self, condition: Callable[[], Any], *, pause: float = 0.5) -> float:
        """Wait for a condition; return the seconds since the controller was started.

        Args:
            pause: Seconds between two questions.
        """
        began = time.monotonic()
        while not condition():
            if self.controller_is_dead() or time.monotonic() - began > PATIENCE_SECONDS:
                sys.exit(f"it did not come true; the controller said last:\n{self.said()}")
            time.sleep(pause)
        return time.monotonic() - getattr(self, "began", began)

    def controller_is_dead(self) -> bool:
        """Whether it has ended by itself."""
        return hasattr(self, "controller") and self.controller.poll() is not None

    def said(self) -> str:
        """Return the last that the controller has logged."""
        return (self.folder / "controller.log").read_text()[-3000:]

    def use(self) -> Use:
        """Return what the controller has used."""
        return Use.of(self.controller.pid)


@contextlib.contextmanager
def bench(nodes: Sequence[str]) -> Iterator[Bench]:
    """Yield a bench with a stack that is being brought up."""
    with tempfile.TemporaryDirectory() as folder:
        made = Bench(Path(folder), nodes)
        try:
            yield made
        finally:
            made.close()


def of_size(count: int, rest: float) -> None:
    """Measure at one number of nodes, and print it."""
    names = [f"gpu-{number:04}" for number in range(1, count + 1)]
    with bench(names) as made:
        took = made.until(lambda: made.is_ready(count))
        asked, used = len(made.crowd.requests()), made.use()
        say(count, "brought up", f"{took:.0f} s, {asked} requests, {asked / count:.1f} a node")
        say(
            count, "by then", f"{used.processor:.1f} s of a processor, {used.resident:.0f} MiB, {used.peak:.0f} at most"
        )
        at_rest(made, count, rest)
        with_heartbeats(made, names, rest)
        joining_one_by_one(made, count)
        edited(made, count, "edited", EDITED[0])
        in_trouble(made, count)
        edited(made, count, "amid a run", EDITED[1])


def at_rest(made: Bench, count: int, seconds: float) -> None:
    """Watch the controller while nothing happens."""
    time.sleep(5.0)
    watch(made, count, "at rest", seconds, lambda: time.sleep(seconds))


def with_heartbeats(made: Bench, names: Sequence[str], seconds: float) -> None:
    """Watch it while kubelets report that all is as it was."""

    def beat() -> None:
        pause = KUBELET_SECONDS / len(names)
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            made.crowd.beat(names[turn % len(names)])
            turn += 1
            time.sleep(pause)

    watch(made, len(names), "heartbeats", seconds, beat)


def watch(made: Bench, count: int, what: str, seconds: float, happens: Callable[[], None]) -> None:
    """Print what the controller uses meanwhile."""
    before, asked = made.use(), len(made.crowd.requests())
    happens()
    used, more = made.use(), len(made.crowd.requests()) - asked
    share = (used.processor - before.processor) / seconds
    say(
        count, what, f"{more * 60 / seconds:.0f} requests a minute, {share:.1%} of a processor, {used.resident:.0f} MiB"
    )


def joining_one_by_one(made: Bench, count: int) -> None:
    """Let nodes join that NFD labels a moment later; print how long our labels take, and the first operand's pod."""
    found, used = list[Times](), list[float]()
    for number in range(1, SINGLE + 1):
        name = f"late-{number}"
        made.crowd.join(name, features=False)
        time.sleep(SETTLED_SECONDS)
        before = made.use().processor
        made.crowd.speak(name)
        made.until(lambda name=name: made.crowd.times[name].labelled, pause=0.02)
        used.append(made.use().processor - before)
        made.until(lambda name=name: made.crowd.times[name].first_pod)
        found.append(made.crowd.times[name])
        made.until(lambda number=number: made.is_ready(count + number))
        time.sleep(SETTLED_SECONDS)
    say(count, "a node joins", f"{told(found)}, {median(used):.2f} s of a processor until it is labelled")


def edited(made: Bench, count: int, what: str, name: str) -> None:
    """Print how long the edit of a DaemonSet holds, as kubectl makes it, and what the controller uses until then."""
    took, used = list[float](), list[float]()
    for number in range(EDITS):
        before, kept = made.use().processor, made.crowd.daemonset(name)["metadata"]["generation"]
        made.kubectl("--namespace", "gpu-operator-resources", "set", "image", f"daemonset/{name}", f"*=edit:{number}")
        began = time.monotonic()
        made.until(lambda kept=kept: made.crowd.daemonset(name)["metadata"]["generation"] >= kept + 2, pause=0.02)
        took.append(time.monotonic() - began)
        used.append(made.use().processor - before)
        time.sleep(SETTLED_SECONDS)
    say(
        count,
        what,
        f"undone {median(took):.2f} s after the edit (slowest {max(took):.2f}), {median(used):.2f} s of a processor",
    )


def told(found: Sequence[Times]) -> str:
    """Say how long nodes waited for what."""
    labelled = [each.labelled - each.seen for each in found]
    started = [each.first_pod - each.seen for each in found]
    return (
        f"labelled {median(labelled):.2f} s after NFD's labels (slowest {max(labelled):.2f}),"
        f" first operand's pod {median(started):.2f} s (slowest {max(started):.2f})"
    )


def in_trouble(made: Bench, count: int) -> None:
    """Print how long the status gets when something is wrong with every node."""
    well = len(json.dumps(made.status))
    made.crowd.lose("device_plugin")
    made.until(lambda: made.status["nodes"]["ready"] == 0)
    say(count, "status", f"{well} bytes as declared, {len(json.dumps(made.status))} with trouble on every node")


def all_at_once(number: int) -> None:
    """Let nodes join within a minute."""
    first = [f"gpu-{each:04}" for each in range(1, 11)]
    more = [f"late-{each:04}" for each in range(1, number + 1)]
    with bench(first) as made:
        made.until(lambda: made.is_ready(len(first)))
        before, asked = made.use(), len(made.crowd.requests())
        began = time.monotonic()
        for position, name in enumerate(more):
            time.sleep(max(0.0, began + position * JOIN_SECONDS / number - time.monotonic()))
            made.crowd.join(name)
        joined = time.monotonic() - began
        made.until(lambda: made.is_ready(len(first) + number))
        took, used = time.monotonic() - began, made.use()
        requests = len(made.crowd.requests()) - asked
        say(number, "join", f"within {joined:.0f} s; all ready {took - joined:.0f} s after the last one")
        say(number, "each", told([made.crowd.times[name] for name in more]))
        say(
            number,
            "meanwhile",
            f"{requests / number:.1f} requests a node, {used.processor - before.processor:.1f} s"
            f" of a processor, {used.resident:.0f} MiB, {used.peak:.0f} at most",
        )
        for wide in ((), ("-o", "wide")):
            print(f"$ kubectl get gpustacks {' '.join(wide)}\n{made.kubectl('get', 'gpustacks', *wide)}", flush=True)


def say(count: int, what: str, figures: str) -> None:
    """Print a line."""
    print(f"{count:5} nodes  {what:13} {figures}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rest", type=float, default=60.0, metavar="SECONDS", help="how long to watch it at rest")
    parser.add_argument("--joining", type=int, default=1000, metavar="NUMBER", help="of nodes that join in a minute")
    parser.add_argument("counts", type=int, nargs="*", metavar="COUNT", default=[100, 1000, 5000])
    chosen = parser.parse_args()
    for count in chosen.counts:
        of_size(count, chosen.rest)
    if chosen.joining:
        all_at_once(chosen.joining)


if __name__ == "__main__":
    main()
