"""A rollout of the driver, against the time that the nodes themselves need."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from statistics import median

from benchmarks.processes import until
from benchmarks.sites import TAKES, VERSIONS, Site, site
from benchmarks.table import Row, at_most
from tests.request_counts import count_requests

LIMIT, WRITES = 1.05, 6.0
_OF_NODES = ("patch nodes", "delete pods", "create pods")  # all pods that have succeeded go in one deletecollection


def rows(rollouts: Iterable[tuple[int, int]], *, real: bool) -> Iterator[Row]:
    """Measure rollouts of so many nodes, so many at a time.

    The ideal is COUNT / PARALLEL waves, rounded up, of the slowest node's own time. A rollout takes from the first
    node's start to the last one's end, by their labels.
    """
    for count, parallel in rollouts:
        with site(count, real=real, takes=TAKES, speed=1.0) as made:
            yield from _rollout(made, parallel)


def _rollout(made: Site, parallel: int) -> Iterator[Row]:
    made.tool("apply", "--yes")
    made.declare(VERSIONS[1], parallel)
    began = time.monotonic()
    use, requests = made.apply()
    until(lambda: all(made.times[name].ended > began for name in made.nodes))
    times = [made.times[name] for name in made.nodes]
    took = max(each.ended for each in times) - min(each.started for each in times)
    pairs = zip(made.nodes, times, strict=True)
    each = [made.at_work(name, at.started, at.ended, TAKES) for name, at in pairs]
    own = max(each)
    waves = math.ceil(len(times) / parallel)
    size = f"{len(times)} by {parallel}"
    typical = took / (waves * median(each))
    instead = f"{typical:.3f} by the median node; {took:.1f} s, slowest node {own:.1f} s, {use.processor:.1f} s of CPU"
    yield at_most("driver rollout", size, round(took / (waves * own), 3), LIMIT, " of ideal", instead=instead)
    writes = count_requests(request for request in requests if request.is_write)
    of_nodes = {name: number for name, number in writes.items() if name.startswith(_OF_NODES)}
    shown = ", ".join(f"{number} {name}" for name, number in of_nodes.items())
    shown += f", {writes.total() - sum(of_nodes.values())} other writes, {len(requests)} requests"
    yield at_most("driver rollout, writes", size, sum(of_nodes.values()) / len(times), WRITES, " a node", instead=shown)
