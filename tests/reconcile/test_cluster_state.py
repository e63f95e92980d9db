"""The state of a stack from the informer cache, in a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components.labels import DEPLOY_DRIVER, DRIVER_GROUP, HOST_DRIVER, VALIDATED
from gpu_provision.components.machine_config import identity_of
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import NODE, POD, node_facts
from gpu_provision.kube.openshift import MACHINE_CONFIG_POOL, machine_pools
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.model.openshift import CONFIG_STATE, CURRENT_CONFIG, DESIRED_CONFIG, OpenShiftFacts, RenderedConfig
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import evaluate_states
from gpu_provision.reconcile.cluster_state import WATCHED, ClusterStateBuilder, Memo
from gpu_provision.reconcile.observer import watched_scopes
from gpu_provision.rollout.states import STATE
from tests.components.builders import DRIVER, fleet, nfd_labels, with_spec
from tests.planning.builders import GPU_NODES, Stack, labelled, outdated, terminating, validation_pod
from tests.reconcile.builders import FakeCache, node_object, reading, reading_of


def test_only_changed_inputs_are_evaluated() -> None:
    """Also by a copy. What is asked for no more is forgotten, and equal results are one object."""
    memo, asked = Memo[str, list[str]](), list[str]()

    def work(name: str) -> list[str]:
        asked.append(name)
        return [name.upper()]

    first = memo.get_all({"a": [1], "b": [2]}, work)
    again = memo.get_all({"a": [1], "b": [3]}, work)
    assert again == first == {"a": ["A"], "b": ["B"]}
    assert again["b"] is first["b"]
    assert copy(memo).get_all({"a": [1]}, work) == {"a": ["A"]}
    assert asked == ["a", "b", "b"]
    memo.get_all({}, work)
    memo.get_all({"a": [1]}, work)
    assert asked == ["a", "b", "b", "a"]


def builder(host_driver: str) -> ClusterStateBuilder:
    """Return the view of a run with ``driver.enabled: auto`` that has read the host."""
    facts = replace(fleet(), host_drivers={"t4-1": host_driver})
    return ClusterStateBuilder(reading(with_spec("driver", prefer_host=True), facts))


def build_state(view: ClusterStateBuilder, version: int, **labels: str) -> Any:
    node = node_object("t4-1", {**nfd_labels(), **labels}, version)
    return view.build(FakeCache({ref_of(node): node}), {}, {})


@pytest.mark.parametrize(
    ("read", "before", "now", "wanted", "then"),
    [
        ("", "true", "pre-installed", (DEPLOY_DRIVER, "true"), (DRIVER_GROUP, None)),
        ("", "pre-installed", "true", (DEPLOY_DRIVER, "true"), (DRIVER_GROUP, "ubuntu22.04")),
        ("550.90.07", "true", "true", (HOST_DRIVER, "550.90.07"), (DEPLOY_DRIVER, "pre-installed")),
    ],
    ids=["a later word counts", "an old word is taken back", "what was read counts for the whole run"],
)
def test_the_driver_manager_knows_the_driver_of_the_host(
    read: str, before: str, now: str, wanted: tuple[str, str], then: tuple[str, str | None]
) -> None:
    """If it spoke later than the host phase; no other program takes its label back."""
    looking = builder(read)
    for version, (word, (key, value)) in enumerate(((before, wanted), (now, then))):
        assert build_state(looking, version, **{DEPLOY_DRIVER: word}).node_labels["t4-1"].get(key) == value


def test_a_kernel_that_changes_during_a_run_gets_its_driver() -> None:
    """By the label of Node Feature Discovery, and before it is there, by the Node object."""
    chosen = with_spec("driver", use_precompiled=True, image=replace(DRIVER.image, version="595"))
    looking = ClusterStateBuilder(reading(chosen, fleet()))
    for version, kernel in enumerate(("5.15.0-122-generic", "5.15.0-124-generic")):
        node = node_object("t4-1", nfd_labels(), version)
        node["status"]["nodeInfo"]["kernelVersion"] = kernel
        found = looking.build(FakeCache({ref_of(node): node}), {}, {}).desired["driver"]
        assert f"nvidia-driver-daemonset-ubuntu22.04-{kernel}" in {each["metadata"]["name"] for each in found}


def test_a_release_of_coreos_that_changes_during_a_run_gets_its_driver() -> None:
    """An update of OpenShift reboots nodes during a run; the Node object tells before Node Feature Discovery."""
    old, new = "417.94.202410090854-0", "418.94.202503121207-0"
    openshift = OpenShiftFacts(driver_toolkits={old: "dtk:17", new: "dtk:18"})
    looking = ClusterStateBuilder(reading(with_spec("driver"), replace(fleet(), openshift=openshift)))
    labels = nfd_labels(OperatingSystem("rhcos", "4.18"))
    for version, (release, image) in enumerate(openshift.driver_toolkits.items()):
        node = node_object("t4-1", labels, version)
        node["status"]["nodeInfo"]["osImage"] = f"Red Hat Enterprise Linux CoreOS {release}"
        found = looking.build(FakeCache({ref_of(node): node}), {}, {}).desired["driver"]
        made = {each["metadata"]["name"]: each for each in found}
        assert image in str(made[f"nvidia-driver-daemonset-rhcos4.18-{release}"])


@pytest.mark.parametrize("key", [STATE, VALIDATED])
def test_labels_of_a_rollout_make_no_manifest_again(key: str) -> None:
    """A thousand nodes go through ten states of a rollout each, and get the label of their validation."""
    looking = builder("")
    first, second = (build_state(looking, version, **{key: f"value-{version}"}) for version in (1, 2))
    assert first.desired is second.desired


class Fleet(InformerCache):
    """A stack that is as declared, until something happens."""

    def __init__(self, seed: int) -> None:
        chosen = with_spec("startup_taint", enabled=True)
        self.stack, self.fate, self.count = Stack(chosen, labelled(chosen=chosen)), random.Random(seed), 0  # noqa: S311
        self.nodes = {node.name: node_object(node.name, {**node.labels}) for node in self.stack.context.facts.nodes}

    def list(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        kind = what.kind if isinstance(what, Scope) else what
        found = {NODE: {ref_of(node): node for node in self.nodes.values()}, POD: self.stack.pods}
        return dict(found.get(kind) or {ref: each for ref, each in self.stack.members.items() if ref.type == kind})

    def change(self) -> None:
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


@pytest.mark.parametrize("seed", range(4))
def test_memos_do_not_change_the_result(seed: int) -> None:
    """The state of the cluster and of each component is that of a new builder."""
    fleet = Fleet(seed)
    stack = fleet.stack
    read = reading_of(stack)
    looking = ClusterStateBuilder(read)
    others = {ref: each for ref, each in stack.members.items() if ref.type not in WATCHED}
    for _ in range(60):
        found, fresh = (each.build(fleet, others, stack.passed) for each in (looking, ClusterStateBuilder(read)))
        assert found == fresh
        assert looking.desired == prepare(stack.inventory, found.context.facts)[1]
        assert looking.states(found) == evaluate_states(fresh)
        assert list(looking.states(found)) == list(evaluate_states(fresh))
        fleet.change()


def pool_object(wanted: str, updated: int) -> Manifest:
    """The MachineConfigPool ``gpu`` of the node t4-1."""
    role = {"matchLabels": {"machineconfiguration.openshift.io/role": "gpu"}}
    nodes = {"matchLabels": {"pool": "gpu"}}
    spec = {"machineConfigSelector": role, "nodeSelector": nodes, "configuration": {"name": wanted}}
    status = {"configuration": {"name": "rendered-1"}, "machineCount": 1, "updatedMachineCount": updated}
    kind = {"apiVersion": MACHINE_CONFIG_POOL.api_version, "kind": MACHINE_CONFIG_POOL.kind}
    metadata = {"name": "gpu", "resourceVersion": f"{wanted}-{updated}"}
    return {**kind, "metadata": metadata, "spec": spec, "status": status}


def test_a_run_follows_the_pools_and_reads_each_rendered_config_once() -> None:
    node = node_object("t4-1", {**nfd_labels(), "pool": "gpu"})
    node["metadata"]["annotations"] = {CURRENT_CONFIG: "rendered-1", DESIRED_CONFIG: "rendered-1", CONFIG_STATE: "Done"}
    nodes = [node_facts(node)]
    facts = replace(fleet(), openshift=OpenShiftFacts(pools=machine_pools([pool_object("rendered-1", 1)], nodes)))
    stack = Stack(facts=facts)
    view, asked = ClusterStateBuilder(reading_of(stack)), list[set[str]]()

    def read(names: Iterable[str]) -> dict[str, RenderedConfig]:
        asked.append({*names})
        held = frozenset(identity_of(each).digest for each in stack.desired["machine_config"])
        return {name: RenderedConfig(held if name == "rendered-2" else frozenset()) for name in names}

    view.read_rendered = read
    for wanted, updated in (("rendered-1", 1), ("rendered-2", 0), ("rendered-2", 0), ("rendered-2", 1)):
        objects = {ref_of(each): each for each in (node, pool_object(wanted, updated))}
        seen = view.build(FakeCache(objects), {}, {})
        [pool] = seen.context.openshift.pools if seen.context.openshift else ()
        assert (pool.wanted, pool.updated, pool.nodes) == (wanted, updated, ("t4-1",))
        states = view.states(seen)
        assert states == evaluate_states(seen), "no memo hides what the pool says of an unchanged node"
    assert asked == [{"rendered-1"}, {"rendered-2"}]
    assert Scope(MACHINE_CONFIG_POOL) in watched_scopes(reading_of(stack))
    assert Scope(MACHINE_CONFIG_POOL) not in watched_scopes(reading_of(Stack()))
