"""What a run sees of the cluster while it goes on, and what it keeps between looks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components.labels import DEPLOY_DRIVER, HOST_DRIVER, VALIDATED
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.planning.observed import ObservedState
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired, states
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.situation import WATCHED, Memo, SituationBuilder
from gpu_provision.rollout.states import STATE
from tests.components.builders import fleet, inventory, nfd_labels, with_spec
from tests.planning.builders import GPU_NODES, Stack, labelled, outdated, terminating, validation_pod


def test_only_what_has_changed_is_worked_out() -> None:
    """Also by a copy; what is asked for no more is forgotten."""
    memo, asked = Memo[str, str](), list[str]()

    def work(name: str) -> str:
        asked.append(name)
        return name.upper()

    assert memo.of({"a": [1], "b": [2]}, work) == {"a": "A", "b": "B"}
    assert memo.of({"a": [1], "b": [3]}, work) == {"a": "A", "b": "B"}
    assert memo.copy().of({"a": [1]}, work) == {"a": "A"}
    assert asked == ["a", "b", "b"]
    memo.of({}, work)
    memo.of({"a": [1]}, work)
    assert asked == ["a", "b", "b", "a"]


def test_equal_results_are_one_object() -> None:
    memo = Memo[str, list[int]]()
    first = memo.of({"a": 1}, lambda _: [0])["a"]
    assert memo.of({"a": 2}, lambda _: [0])["a"] is first
    assert memo.of({"a": 3}, lambda _: [1])["a"] == [1]


class Showing(Mirror):
    """A mirror that shows one node."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self.node: Manifest = {}

    def of(self, kind: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the node."""
        return {ObjectRef("v1", "Node", "", "t4-1"): self.node} if kind == NODE else {}


def seen(view: SituationBuilder, version: int, *, driver: str) -> dict[str, Any]:
    """Return the labels that the node is to get when its driver's deploy label says so."""
    mirror = Showing()
    found = {**nfd_labels(), DEPLOY_DRIVER: driver}
    mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": str(version), "labels": found}}
    return dict(view.build(mirror, {}, {}).node_labels["t4-1"])


def builder(host_driver: str) -> SituationBuilder:
    """Return the view of a run with ``driver.enabled: auto`` that has read the host."""
    facts = replace(fleet(), host_drivers={"t4-1": host_driver})
    context, desired = prepare(with_spec("driver", prefer_host=True), facts)
    observed = ObservedState(cluster="c", facts=facts)
    return SituationBuilder(ClusterPlan(context, desired, observed, plan(context, desired, observed)))


def test_a_later_word_of_the_driver_manager_is_believed() -> None:
    """A driver that the host phase has not read."""
    looking = builder("")
    assert seen(looking, 1, driver="true")[DEPLOY_DRIVER] == "true"
    after = seen(looking, 2, driver="pre-installed")
    assert DEPLOY_DRIVER not in after
    assert "gpu-provision.io/driver" not in after


def test_an_old_word_of_the_driver_managers_is_taken_back() -> None:
    """It was there before the tool looked, and no other program removes it."""
    looking = builder("")
    assert seen(looking, 1, driver="pre-installed")[DEPLOY_DRIVER] == "true"
    assert seen(looking, 2, driver="true")["gpu-provision.io/driver"] == "ubuntu22.04"


def test_what_was_read_counts_for_the_whole_run() -> None:
    """Also while the labels do not say it yet."""
    looking = builder("550.90.07")
    assert seen(looking, 1, driver="true")[HOST_DRIVER] == "550.90.07"
    assert seen(looking, 2, driver="true")[DEPLOY_DRIVER] == "pre-installed"


@pytest.mark.parametrize("key", [STATE, VALIDATED])
def test_labels_of_a_rollout_make_no_manifest_again(key: str) -> None:
    """A thousand nodes go through ten states of a rollout each, and get the label of their validation."""
    looking, mirror = builder(""), Showing()

    def desired(version: int, value: str) -> Desired:
        found = {**nfd_labels(), key: value}
        mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": str(version), "labels": found}}
        return looking.build(mirror, {}, {}).desired

    assert desired(1, "upgrade-required") is desired(2, "cordon-required")


def test_a_look_ignores_lists_of_before_the_run() -> None:
    """A run creates objects that the list lacks, and has to undo edits of them."""
    context, desired = prepare(inventory(), fleet())
    service = ObjectRef("v1", "Service", "ns", "of-the-stack")
    read = ObservedState(
        cluster="c", facts=fleet(), namespaces=frozenset({"ns"}), names={(service.type, "ns"): frozenset()}
    )
    assert read.lacks(service)
    looking = SituationBuilder(ClusterPlan(context, desired, read, plan(context, desired, read)))
    mirror = Showing()
    mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": "1", "labels": nfd_labels()}}
    assert not looking.build(mirror, {}, {}).observed.lacks(service)
    assert not replace(read, members={service: {}}).lacks(service)


class Fleet(Mirror):
    """A stack that is as declared, until something happens."""

    def __init__(self, seed: int) -> None:
        """Show everything."""
        chosen = with_spec("startup_taint", enabled=True)
        self.stack, self.fate, self.count = Stack(chosen, labelled(chosen=chosen)), random.Random(seed), 0  # noqa: S311
        self.nodes = {node.name: node_object(node.name, {**node.labels}) for node in self.stack.context.facts.nodes}

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the live objects of a kind."""
        kind = what.kind if isinstance(what, Scope) else what
        found = {NODE: {ref_of(node): node for node in self.nodes.values()}, POD: self.stack.pods}
        return dict(found.get(kind) or {ref: each for ref, each in self.stack.members.items() if ref.type == kind})

    def change(self) -> None:
        """Let one thing happen, or be as it was again."""
        stack, some = self.stack, self.fate.choice
        name, ref = some(GPU_NODES), some(list(stack.pods))
        node, pod = self.nodes[name], stack.pods[ref]
        labels = node["metadata"]["labels"] | {some(list(node["metadata"]["labels"])): some(["true", "false", "x"])}
        daemonset = some([each for each in stack.members if each.kind == "DaemonSet"])
        status = {"conditions": [{"type": "Ready", "status": some(["True", "False"])}]}
        happenings: list[Callable[[], object]] = [
            lambda: stack.put(some([outdated, terminating])(pod)),
            lambda: stack.put({**pod, "status": {"phase": some(["Pending", "Running", "Failed"])}}),
            lambda: stack.remove(pod) if len(stack.pods) > 9 else None,
            lambda: stack.passed.pop(("device_plugin_validation", name), None),
            lambda: stack.put(validation_pod(stack.validations()[0], some(["Failed", "Succeeded"]))),
            lambda: self.nodes.update({name: node_object(name, labels)}),
            lambda: self.nodes.update({name: {**node, "status": {**node["status"], **status}}}),
            lambda: self.nodes.pop(some(["cpu-1", "late"]), None),
            lambda: self.nodes.update(late=node_object("late", {**nfd_labels()})),
            lambda: stack.members.update({daemonset: {**stack.members[daemonset], "status": {}}}),
            lambda: stack.pods.update(Stack(stack.inventory, stack.context.facts).pods),
        ]
        some(happenings)()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_between_looks_changes_no_answer(seed: int) -> None:
    """A situation and its states are those that are worked out from nothing."""
    fleet = Fleet(seed)
    stack = fleet.stack
    reading = ClusterPlan(
        stack.context, stack.desired, stack.observed, plan(stack.context, stack.desired, stack.observed)
    )
    looking = SituationBuilder(reading)
    others = {ref: each for ref, each in stack.members.items() if ref.type not in WATCHED}
    for _ in range(60):
        found, fresh = (each.build(fleet, others, stack.passed) for each in (looking, SituationBuilder(reading)))
        assert found == fresh
        assert looking.desired == prepare(stack.inventory, found.context.facts)[1]
        assert looking.states(found) == states(fresh)
        assert list(looking.states(found)) == list(states(fresh))
        fleet.change()


def node_object(name: str, labels: dict[str, str]) -> Manifest:
    """Return a Node."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "labels": labels}
    allocatable = {"nvidia.com/gpu": "8" if name == "h100-1" else "1"}
    info = {"containerRuntimeVersion": "containerd://1.7.27", "bootID": f"boot-of-{name}"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info, "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}
