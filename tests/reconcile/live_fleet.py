"""A fleet to which things happen, behind a mirror that has them as a watch brings them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from gpu_provision.components import labels
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE, POD, node_facts
from gpu_provision.kube.transport import WatchEvent
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts, ref_of
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Situation, situation
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.situation import WATCHED, View
from tests.components.builders import inventory, nfd_labels
from tests.planning.builders import GPU_NODES, Stack, outdated, restarted, terminating, validation_pod

LATE = {"fleet": "late"}

RESTARTED = restarted(Stack().pod("driver", "t4-1"), "2026-11-21T08:00:00Z")["status"]


def chosen(**specs: Any) -> Inventory:
    """Return an inventory one of whose pools also selects nodes that it does not list."""
    found = inventory()
    pools = {**found.pools, "t4": replace(found.pools["t4"], node_selector=LATE)}
    return replace(found, pools=pools, specs=replace(found.specs, **specs))


def node_object(facts: NodeFacts) -> Manifest:
    """Return a Node that says so."""
    info = {"containerRuntimeVersion": "containerd://1.7.27", "bootID": facts.boot_id, "osImage": "Ubuntu 22.04.5 LTS"}
    allocatable = {} if facts.gpus_allocatable is None else {"nvidia.com/gpu": str(facts.gpus_allocatable)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": facts.name, "uid": facts.uid, "labels": {**facts.labels}, "resourceVersion": "1"},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": info,
            "allocatable": allocatable,
        },
    }


class Fleet:
    """A stack that is as declared, until something happens."""

    def __init__(self, seed: int = 0, more: int = 0, **specs: Any) -> None:
        """Show everything; ``more`` nodes besides those of the sandbox have joined."""
        self.inventory, self.fate, self.version = chosen(**specs), random.Random(seed), 1  # noqa: S311 - no secrets
        self.stack = Stack(self.inventory)
        self.mirror = Mirror(cast("Cluster", None), [Scope(each) for each in (NODE, POD, *WATCHED)], patience=0.0)
        self.nodes: dict[str, Manifest] = {}
        for facts in self.stack.context.facts.nodes:
            self.show(node_object(facts))
        self.join(*(f"late-{number:03}" for number in range(more)))
        for item in (*self.stack.pods.values(), *self.stack.members.values()):
            self.show(item)
        context, desired = prepare(self.inventory, self.facts)
        observed = Observed(cluster="c", facts=self.facts)
        self.view = View(Reading(context, desired, observed, plan(context, desired, observed)))

    @property
    def facts(self) -> ClusterFacts:
        """The nodes as they are now."""
        return ClusterFacts(version="v1.34.0", nodes=tuple(node_facts(self.nodes[name]) for name in sorted(self.nodes)))

    @property
    def situation(self) -> Situation:
        """What is seen, worked out from nothing."""
        context, desired = prepare(self.inventory, self.facts)
        observed = Observed(
            cluster="c",
            facts=self.facts,
            members={ref: live for ref, live in self.stack.members.items() if ref.type in WATCHED} | self.others,
            pods=self.stack.pods,
            passed=self.stack.passed,
        )
        return situation(context, desired, observed)

    @property
    def others(self) -> dict[Any, Manifest]:
        """Objects of kinds that no watch brings."""
        return {ref: live for ref, live in self.stack.members.items() if ref.type not in WATCHED}

    def show(self, item: Manifest, event: str = "MODIFIED") -> None:
        """Have a watch bring an object."""
        self.version += 1
        shown = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        ref = ref_of(shown)
        known = {"Node": self.nodes, "Pod": self.stack.pods}.get(ref.kind, self.stack.members)
        key: Any = ref.name if ref.kind == "Node" else ref
        if event == "DELETED":
            known.pop(key, None)  # type: ignore[call-overload]
        else:
            known[key] = shown  # type: ignore[index]
        if ref.type in {NODE, POD, *WATCHED}:
            self.mirror._take(self.mirror._watched[Scope(ref.type)], WatchEvent(event, shown, str(self.version)))

    def join(self, *names: str) -> None:
        """Let nodes of a pool with a selector join, or join again."""
        for name in names:
            model = node_object(self.stack.context.facts.nodes[0])
            self.show({**model, "metadata": {**model["metadata"], "name": name, "uid": name, "labels": {**LATE}}})

    def relabel(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change labels of a node; None removes one."""
        if node := self.nodes.get(name):
            found = {**node["metadata"]["labels"], **changes}
            kept = {key: value for key, value in found.items() if value is not None}
            self.show({**node, "metadata": {**node["metadata"], "labels": kept}})

    def restatus(self, name: str, **status: Any) -> None:
        """Change the status of a node."""
        if node := self.nodes.get(name):
            self.show({**node, "status": {**node["status"], **status}})

    def change(self) -> None:
        """Let one thing happen, or be as it was again."""
        fate = self.fate
        node, pod = fate.choice((*GPU_NODES, "late-001", "late-002")), fate.choice(list(self.stack.pods.values()))
        there = self.nodes.get(node)
        runtime = fate.choice(("containerd://1.7.27", "cri-o://1.30.0"))
        happenings: list[Callable[[], object]] = [
            lambda: self.show(fate.choice([outdated, terminating])(pod)),
            lambda: self.show({**pod, "status": {"phase": fate.choice(["Pending", "Running", "Failed"])}}),
            lambda: self.show(pod, "DELETED") if len(self.stack.pods) > _LEFT else None,
            lambda: self.stack.passed.pop(("device_plugin_validation", node), None),
            lambda: self.show(validation_pod(self.stack.validations()[0], fate.choice(["Failed", "Succeeded"]))),
            lambda: self.show({**pod, "status": RESTARTED}),
            lambda: self.restatus(node, conditions=[{"type": "Ready", "status": fate.choice(["True", "False"])}]),
            lambda: self.restatus(node, allocatable={"nvidia.com/gpu": str(fate.randrange(9))}),
            lambda: self.restatus(node, nodeInfo={"containerRuntimeVersion": runtime}),
            lambda: self.relabel(node, {"nvidia.com/gpu.deploy.driver": fate.choice(["false", "true", None])}),
            lambda: self.relabel(node, {labels.VALIDATED: fate.choice(["x", None])}),
            lambda: self.relabel(node, {labels.DRIVER_GROUP: fate.choice(["ubuntu22.04", "rocky9", None])}),
            lambda: self.relabel(
                node, nfd_labels(OperatingSystem(*fate.choice([("ubuntu", "22.04"), ("rocky", "9")])))
            ),
            lambda: self.relabel(node, {"fleet": fate.choice(["late", "none"])}),
            lambda: self.show(there, "DELETED") if there else None,
            lambda: self.join(fate.choice(("late-001", "late-002"))),
            lambda: [self.show(node_object(facts)) for facts in Stack(self.inventory).context.facts.nodes],
            lambda: self.show(fate.choice([live for live in self.stack.members.values() if "status" in live])),
            lambda: self.mirror.note(self.stack.pods[next(iter(self.stack.pods))]),
        ]
        fate.choice(happenings)()


_LEFT = 9  # pods that stay
