"""How long the driver's rollout takes where only the tool's own work costs time: fleets that no machine here simulates.

    python -m benchmarks.paper [COUNT:PARALLEL ...]        default: 5:1 100:10 1000:100

The engine runs as in any apply, on nodes of paper and by a clock of paper: a node needs four seconds from the end of
its old driver pod to a new one that is ready, and one for the pod that proves it. Watches tell of both at once, and of
forty changes of a node's pods meanwhile. What the engine needs of a processor is taken as it is measured. Besides that
each request costs the tool what ``--request`` says and is answered after ``--latency``, sixteen at a time, and each
event costs it what ``--event`` says; a request's default was measured on a busy machine.

Not in it: an API server that gets slower under load, and a processor that is shared with anybody.
"""

# ruff: noqa: SLF001 - the engine's inside is what is measured

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast

from gpu_provision.cluster.observe import NODE, POD
from gpu_provision.cluster.watching import Scope
from gpu_provision.engine.actions import HarvestPod, MoveNode, RemovePod, StartPod, Step
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.run import Run
from gpu_provision.engine.steps import SEEN_SECONDS
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory, Node
from gpu_provision.model.upgrade import UpgradePolicy
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.upgrades import DRIVER
from gpu_provision.rollout.actions import Move
from tests.components.builders import DRIVER as SPEC
from tests.components.builders import nfd_labels, node, with_spec
from tests.planning.builders import Stack, daemon_pod, live, validation_pod

OWN = 5.0
_GONE, _NEW, _READY, _PROVEN = 1.0, 1.1, 4.0, 1.0  # seconds after the step that each follows
_CHANGES, _EVERY = 40, 0.07  # of a node's pods meanwhile
_WORKERS = 16
_RESTED = {"", "upgrade-done", "upgrade-required"}


@dataclass
class Clock:
    """Goes by the processor time that this process uses, and jumps over what it would wait for."""

    ahead: float = 1.8e9
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: itertools.count[int] = field(default_factory=itertools.count)
    has_news: bool = False

    def now(self) -> float:
        """Return the time."""
        return self.ahead + time.process_time()

    def at(self, moment: float, happens: Callable[[], None]) -> None:
        """Let something happen then."""
        heapq.heappush(self.due, (moment, next(self.order), happens))

    def catch_up(self) -> None:
        """Let happen what has come due."""
        while self.due and self.due[0][0] <= self.now():
            heapq.heappop(self.due)[2]()
            self.has_news = True

    def sleep(self, seconds: float) -> None:
        """Let time pass, with all that happens in it."""
        end = self.now() + seconds
        while self.due and self.due[0][0] <= end:
            self._jump(self.due[0][0])
        self._jump(end)

    def wait(self, seconds: float) -> None:
        """Let time pass until something happens."""
        self.catch_up()
        if not self.has_news:
            end = self.now() + seconds
            self._jump(min(end, self.due[0][0]) if self.due else end)
        self.has_news = False

    def _jump(self, moment: float) -> None:
        self.ahead += max(0.0, moment - self.now())
        self.catch_up()


class Paper:
    """A cluster of nodes that do as they are told: what the engine's mirror shows, and the API that a rollout asks."""

    silence, requests = 0.0, 0

    def __init__(self, count: int, policy: UpgradePolicy, clock: Clock, event_cost: float) -> None:
        """Bring everything up with the previous driver."""
        names = [f"gpu-{number:04}" for number in range(1, count + 1)]
        self.clock, self.event_cost, self.versions = clock, event_cost, itertools.count(1)
        old, new = (_inventory(version, names, policy) for version in ("580.126.20", "580.178.04"))
        facts = _labelled(old, names)
        stack = Stack(old, facts)
        self.context, self.desired = prepare(new, facts)
        self.members = {
            ref_of(item): live(item)
            for items in self.desired.values()
            for item in items
            if item["kind"] not in {"Node", "Pod"}
        }
        self.observed = replace(stack.observed, members=self.members)
        self.driver = next(item for item in self.desired[DRIVER] if item["kind"] == "DaemonSet")
        nodes = map(self._node, facts.nodes)
        self.objects: dict[Kind, dict[ObjectRef, Manifest]] = {NODE: {ref_of(item): item for item in nodes}}
        self.objects[POD] = dict(stack.pods)

    def _node(self, facts: NodeFacts) -> Manifest:
        metadata = {"name": facts.name, "uid": facts.uid, "labels": dict(facts.labels), "annotations": {}}
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "1"}}
        info = {
            "osImage": "Ubuntu 22.04.5 LTS",
            "containerRuntimeVersion": "containerd://1.7.0",
            "bootID": facts.boot_id,
        }
        kind = {"apiVersion": "v1", "kind": "Node", "spec": {}}
        return {**kind, "metadata": self._versioned(metadata), "status": {**status, "nodeInfo": info}}

    def _versioned(self, metadata: Manifest) -> Manifest:
        return {**metadata, "resourceVersion": str(next(self.versions))}

    def put(self, ref: ObjectRef, item: Manifest | None) -> None:
        """Show an object, or that it is gone."""
        self.clock.ahead += self.event_cost
        if item is None:
            self.objects[ref.type].pop(ref, None)
        else:
            self.objects[ref.type][ref] = item

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return what a mirror shows; there is nothing but the stack in this cluster."""
        self.clock.catch_up()
        if isinstance(what, Scope):
            return {}
        return dict(self.objects.get(what) or {ref: item for ref, item in self.members.items() if ref.type == what})

    def follow(self, *_: Scope) -> None:
        """Follow budgets and other people's pods: there are none."""

    def wait(self, seconds: float) -> None:
        """Wait for something to happen."""
        self.clock.wait(seconds)

    def eviction_version(self) -> str:
        """Return that of today."""
        return "policy/v1"

    def merge(self, ref: ObjectRef, change: Manifest) -> Manifest:
        """Change a node."""
        known, metadata = self.objects[NODE][ref], change["metadata"]
        changed = {
            key: {
                name: value for name, value in {**known["metadata"][key], **metadata[key]}.items() if value is not None
            }
            for key in ("labels", "annotations")
        }
        merged = self._versioned({**known["metadata"], **changed})
        self.put(ref, {**known, "metadata": merged, "spec": {**known["spec"], **change.get("spec", {})}})
        return self.objects[NODE][ref]

    def log(self, *_: object) -> tuple[str, ...]:
        """Return what a validation printed."""
        return ("Test PASSED",)

    def restart(self, step: RemovePod, now: float) -> None:
        """End a driver pod; another one comes up."""
        name, later = step.key[1], self.clock.at
        pod = daemon_pod(self.driver, name)
        pod["metadata"]["uid"] += "-new"
        ref = ref_of(pod)
        later(now + _GONE, partial(self.put, step.ref, None))
        for change in range(_CHANGES):
            status = {"phase": "Pending", "change": change}
            later(now + _NEW + change * _EVERY, partial(self.put, ref, {**pod, "status": status}))
        later(now + _READY, partial(self.put, ref, pod))

    def prove(self, step: StartPod, now: float) -> None:
        """Run a validation."""
        pod = validation_pod(step.manifest, "Pending")
        pod["metadata"] = {**pod["metadata"], "uid": f"{step.ref.name}-{next(self.versions)}"}
        self.put(step.ref, pod)
        self.clock.at(now + _PROVEN, partial(self.put, step.ref, {**pod, "status": {"phase": "Succeeded"}}))


def _inventory(version: str, names: Sequence[str], policy: UpgradePolicy) -> Inventory:
    image = replace(SPEC.image, version=version)
    nodes = tuple(Node(name=name, pool="t4") for name in names)
    return replace(with_spec(DRIVER, image=image, upgrade_policy=policy), nodes=nodes)


def _labelled(inventory: Inventory, names: Sequence[str]) -> ClusterFacts:
    facts = ClusterFacts(version="v1.34.0", nodes=tuple(node(name, labels=nfd_labels()) for name in names))
    _, desired = prepare(inventory, facts)
    labels = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired["node_labels"]}
    nodes = (replace(each, labels={**each.labels, **labels[each.name]}, gpus_allocatable=1) for each in facts.nodes)
    return replace(facts, nodes=tuple(nodes))


class PaperSteps:
    """Carries steps out by the clock of paper, in place of threads."""

    def __init__(self, run: Any, paper: Paper, latency: float, request_cost: float) -> None:
        """Prepare."""
        self.run, self.paper, self.latency, self.request_cost = run, paper, latency, request_cost
        self.running: set[Step] = set()
        self.not_before: dict[Step, float] = {}
        self.free = [0.0] * _WORKERS
        self.written: list[Step] = []
        self.has_ended = False
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return bool(self.running)

    @property
    def moving(self) -> dict[str, Move]:
        """Return the nodes that are being moved."""
        return {step.move.node: step.move for step in self.running if isinstance(step, MoveNode)}

    def rest(self, seconds: float) -> None:
        """Let time pass, at most until a step ends."""
        clock = self.paper.clock
        end = clock.now() + seconds
        while not self.has_ended and clock.now() < end:
            clock.sleep(max(0.0, min([end, *(moment for moment, _, _ in clock.due[:1])]) - clock.now()))

    def collect(self) -> None:
        """Nothing is left lying about."""
        self.has_ended = False

    def keep_record(self, _: float) -> None:
        """One request every other second, whatever the number of nodes."""

    def start(self, step: Step, now: float) -> None:
        """Start a step, as `engine.steps.Steps` does."""
        if step in self.running or now < self.not_before.get(step, 0.0):
            return
        self.not_before[step] = now + SEEN_SECONDS
        self.running.add(step)
        self.paper.clock.ahead += self.request_cost
        worker = self.free.index(min(self.free))
        self.free[worker] = max(self.paper.clock.now(), self.free[worker]) + self.latency
        self.paper.clock.at(self.free[worker], partial(self._end, step))

    def _end(self, step: Step) -> None:
        self.running.remove(step)
        self.has_ended = True
        now = self.paper.clock.now()
        match step:
            case MoveNode():
                self.run._rollout.move(step)
                if step.move.to not in _RESTED:
                    self.started.setdefault(step.move.node, now)
                if step.move.to == "upgrade-done":
                    self.ended[step.move.node] = now
            case RemovePod() if step.key[0] == DRIVER:
                self.paper.restart(step, now)
            case RemovePod():
                self.paper.put(step.ref, None)
            case StartPod():
                self.paper.prove(step, now)
            case HarvestPod():
                self.run._validations.harvest(step)
            case _:
                raise AssertionError(step)


def measure(count: int, parallel: int, options: argparse.Namespace) -> str:
    """Return one line of the table."""
    clock = Clock()
    time.time = time.monotonic = clock.now
    time.sleep = cast("Any", clock.sleep)
    policy = UpgradePolicy(max_parallel_upgrades=parallel, max_unavailable="100%")
    paper = Paper(count, policy, clock, options.event)
    reading = Reading(paper.context, paper.desired, paper.observed, plan(paper.context, paper.desired, paper.observed))
    run: Any = Run(cast("Any", paper), reading, listen=lambda _: None)
    steps = run._steps = PaperSteps(run, paper, options.latency, options.request)
    looks, look = [], run._look

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        try:
            return look(*arguments)
        finally:
            looks.append(time.process_time() - began)

    run._look = timed
    run._follow(paper, SimpleNamespace(lost=None))
    waves, took = math.ceil(count / parallel), max(steps.ended.values()) - min(steps.started.values())
    return (
        f"{count:5}  {parallel:8}  {waves:5}  {took:9.1f}  {took / (waves * OWN):7.2f}"
        f"  {len(looks):5}  {statistics.median(looks) * 1000:7.1f}  {sum(looks):13.1f}"
    )


def main() -> None:
    """Measure every rollout and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds until a request is answered")
    parser.add_argument("--request", type=float, default=0.0015, help="seconds of a processor that it costs the tool")
    parser.add_argument("--event", type=float, default=0.0001, help="seconds of a processor that an event costs it")
    parser.add_argument("rollouts", nargs="*", metavar="COUNT:PARALLEL", default=["5:1", "100:10", "1000:100"])
    chosen = parser.parse_args()
    print("nodes  parallel  waves  rollout s  x ideal  looks  ms each  s of looking", flush=True)
    for rollout in chosen.rollouts:
        count, parallel = (int(part) for part in rollout.split(":"))
        print(measure(count, parallel, chosen), flush=True)


if __name__ == "__main__":
    main()
