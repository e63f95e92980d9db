"""The controller: at rest, with heartbeats, when an operand is deleted, and when nodes join."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from benchmarks.processes import Use, until
from benchmarks.sites import POOLS, CrowdSite, Site, site
from benchmarks.table import Row, at_most
from gpu_provision.operator.crd import definition
from tests.request_counts import count_requests
from tests.scenarios.client import Client

STACK = {
    "apiVersion": "gpu-provision.io/v1alpha1",
    "kind": "GPUStack",
    "metadata": {"name": "prod"},
    "spec": {"pools": POOLS},
}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
OPERANDS, OPERAND = "gpu-operator-resources", "nvidia-dcgm-exporter"
MEMORY = {1000: 150.0, 5000: 400.0}
BACK_SECONDS = LABELLED_SECONDS = 1.0
DELETIONS, SETTLE_SECONDS, KUBELET_SECONDS, JOIN_SECONDS, FIRST = 3, 5.0, 300.0, 60.0, 10


def rows(sizes: Iterable[int], joining: int, rest: float, *, real: bool) -> Iterator[Row]:
    """Measure at each size, then let nodes join a stack of ten.

    Args:
        rest: Seconds to watch a controller at rest.
    """
    for count in sizes:
        with site(count, real=real) as made, made.controller() as running, made.api() as api:
            _bring_up(made, running, api)
            yield from _at_rest(made, running, rest)
            yield _operand_back(count, api)
    if joining:
        with site(FIRST, real=real) as made, made.controller() as running, made.api() as api:
            _bring_up(made, running, api)
            yield from _joins(made, running, api, joining)


def _bring_up(made: Site, running: subprocess.Popen[str], api: Client) -> None:
    api.apply(NAMESPACE)
    api.apply(definition())
    until(lambda: api.serves("gpu-provision.io/v1alpha1"), process=running)
    until(lambda: _applied(api), process=running)
    until(lambda: _ready(api) == len(made.nodes), process=running)
    time.sleep(SETTLE_SECONDS)


def _applied(api: Client) -> bool:
    """Say whether the API server takes the stack; the definition becomes established shortly before."""
    try:
        api.apply(STACK)
    except (AssertionError, LookupError):
        return False
    return True


def _ready(api: Client) -> int:
    """Return how many nodes are ready if the stack is, else 0."""
    status: dict[str, Any] = api.get("gpustack", "prod").get("status") or {}
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return int(status["nodes"]["ready"]) if is_ready else 0


def _at_rest(made: Site, running: subprocess.Popen[str], seconds: float) -> Iterator[Row]:
    size = f"{len(made.nodes)} nodes"
    before, asked = Use.of(running.pid), len(made.requests())
    time.sleep(seconds)
    used, requests = Use.of(running.pid), made.requests()[asked:]
    counts = count_requests(request for request in requests if not request.path.rpartition("/")[0].endswith("leases"))
    share = f"{(used.processor - before.processor) / seconds:.1%} of a processor"
    names = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    yield Row("controller at rest", size, f"{counts.total()} requests in {seconds:.0f} s", "0", not counts, names)
    yield Row("controller at rest, CPU", size, share)
    if limit := MEMORY.get(len(made.nodes)):
        yield at_most("controller, memory", size, round(used.resident), limit, " MiB", instead=f"peak {used.peak:.0f}")
    else:
        yield Row("controller, memory", size, f"{used.resident:.0f} MiB", instead=f"peak {used.peak:.0f}")
    if isinstance(made, CrowdSite):
        yield Row("controller, heartbeats", size, f"{_heartbeats(made, running, seconds):.1%} of a processor")


def _heartbeats(made: CrowdSite, running: subprocess.Popen[str], seconds: float) -> float:
    """Return the share of a processor while each kubelet reports every five minutes that nothing has changed."""
    before, end, turn = Use.of(running.pid).processor, time.monotonic() + seconds, 0
    while time.monotonic() < end:
        made.crowd.beat(made.nodes[turn % len(made.nodes)])
        turn += 1
        time.sleep(KUBELET_SECONDS / len(made.nodes))
    return (Use.of(running.pid).processor - before) / seconds


def _operand_back(count: int, api: Client) -> Row:
    took = []
    for _ in range(DELETIONS):
        took.append(_seconds_without_operand(api))
        until(lambda: _operand(api)["status"].get("numberReady") == _ready(api) == count)
        time.sleep(SETTLE_SECONDS)
    worst = round(max(took), 2)
    return at_most(
        "deleted operand back", f"{count} nodes", worst, BACK_SECONDS, " s", instead=f"median {median(took):.2f}"
    )


def _seconds_without_operand(api: Client) -> float:
    """Delete it; a watch shows the next one, as an answer to a request would come after those of a busy server's."""
    old = _operand(api)["metadata"]["uid"]
    with api.watch("daemonsets", "-n", OPERANDS) as events:
        api.delete("daemonset", OPERAND, "-n", OPERANDS, wait=False)
        began = time.monotonic()
        shown = (event.object["metadata"] for event in events)
        next(each for each in shown if each["name"] == OPERAND and each["uid"] != old)
        return time.monotonic() - began


def _operand(api: Client) -> dict[str, Any]:
    items = api.get("daemonsets", "-n", OPERANDS)["items"]
    return next((item for item in items if item["metadata"]["name"] == OPERAND), {})


def _joins(made: Site, running: subprocess.Popen[str], api: Client, count: int) -> Iterator[Row]:
    before, asked = Use.of(running.pid), len(made.requests())
    with made.join(count, JOIN_SECONDS):
        late = [times for name, times in made.times.items() if name.startswith("late-")]
        until(lambda: all(each.labelled for each in late), process=running)
        waited = sorted(each.labelled - each.seen for each in late)
        until(lambda: _ready(api) == FIRST + count, process=running)
    used, size = Use.of(running.pid), f"{count} nodes"
    instead = f"median {median(waited):.2f} s, 99 of 100 within {waited[-1 - count // 100]:.2f} s"
    yield at_most("nodes join, labelled in", size, round(waited[-1], 2), LABELLED_SECONDS, " s", instead=instead)
    each = (len(made.requests()) - asked) / count
    text = f"{each:.1f} requests a node, {used.processor - before.processor:.1f} s of CPU, {used.peak:.0f} MiB at most"
    yield Row("nodes join, all ready", size, text)
