"""The state of a stack from the informer cache, in a run and between runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.components.labels import DEPLOY_DRIVER, DRIVER_GROUP, HOST_DRIVER, VALIDATED
from gpu_provision.components.machine_config import identity_of
from gpu_provision.components.monitoring import PROMETHEUS_RULES, SERVICE_MONITORS
from gpu_provision.kube.client import ApplyResult, KubeClient
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import NODE, POD, config_maps_of, node_facts
from gpu_provision.kube.openshift import DRIVER_TOOLKIT, FOLLOWED, MACHINE_CONFIG_POOL, PROXY, machine_pools
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, ObservedState, ref_of
from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.model.monitoring_specs import PrometheusRuleSpec, ServiceMonitorSpec
from gpu_provision.model.openshift import CONFIG_STATE, CURRENT_CONFIG, DESIRED_CONFIG, OpenShiftFacts, RenderedConfig
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import evaluate_states
from gpu_provision.reconcile import observer
from gpu_provision.reconcile.desired_drivers import AWAITS_CONFIG
from gpu_provision.reconcile.observer import (
    CONFIG_MAP,
    MONITOR_DEFINITION,
    WATCHED,
    Memo,
    SituationBuilder,
    StackObserver,
    scope_of_object,
    watched_scopes,
)
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.rollout import RolloutController
from gpu_provision.rollout.states import STATE
from tests.components.builders import DRIVER, fleet, nfd_labels, with_spec
from tests.planning.builders import GPU_NODES, Stack, labelled, outdated, terminating, validation_pod

BY_HAND = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {}}]
BY_A_PROGRAM = [{"manager": "somebodys-controller", "operation": "Update", "fieldsV1": {}}]
CONFIG = "time-slicing"


class Showing(InformerCache):
    """A cache of objects that a test puts there."""

    def __init__(self, objects: dict[ObjectRef, Manifest]) -> None:
        self.objects = objects

    def list(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        kind = what.kind if isinstance(what, Scope) else what
        fields = what.field_selector if isinstance(what, Scope) else ""
        name = fields.partition(",")[0].removeprefix("metadata.name=")
        return {ref: each for ref, each in self.objects.items() if ref.type == kind and name in {"", ref.name}}

    def new_reader(self) -> InformerCache:
        return self


def node_object(name: str, labels: dict[str, str] | None = None, version: int = 1) -> Manifest:
    found = nfd_labels() if labels is None else labels
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": str(version), "labels": found}
    allocatable = {"nvidia.com/gpu": "8" if name == "h100-1" else "1"}
    info = {"containerRuntimeVersion": "containerd://1.7.27", "bootID": f"boot-of-{name}"}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info, "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def reading_of(stack: Stack) -> ClusterPlan:
    draft = plan(stack.context, stack.desired, stack.observed)
    return ClusterPlan(stack.context, stack.desired, stack.observed, draft)


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


def builder(host_driver: str) -> SituationBuilder:
    """Return the view of a run with ``driver.enabled: auto`` that has read the host."""
    facts = replace(fleet(), host_drivers={"t4-1": host_driver})
    context, desired = prepare(with_spec("driver", prefer_host=True), facts)
    observed = ObservedState(cluster="c", facts=facts)
    return SituationBuilder(ClusterPlan(context, desired, observed, plan(context, desired, observed)))


def build_state(view: SituationBuilder, version: int, **labels: str) -> Any:
    node = node_object("t4-1", {**nfd_labels(), **labels}, version)
    return view.build(Showing({ref_of(node): node}), {}, {})


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
    facts = fleet()
    chosen = with_spec("driver", use_precompiled=True, image=replace(DRIVER.image, version="595"))
    context, desired = prepare(chosen, facts)
    observed = ObservedState(cluster="c", facts=facts)
    looking = SituationBuilder(ClusterPlan(context, desired, observed, plan(context, desired, observed)))
    for version, kernel in enumerate(("5.15.0-122-generic", "5.15.0-124-generic")):
        node = node_object("t4-1", nfd_labels(), version)
        node["status"]["nodeInfo"]["kernelVersion"] = kernel
        found = looking.build(Showing({ref_of(node): node}), {}, {}).desired["driver"]
        assert f"nvidia-driver-daemonset-ubuntu22.04-{kernel}" in {each["metadata"]["name"] for each in found}


def test_a_release_of_coreos_that_changes_during_a_run_gets_its_driver() -> None:
    """An update of OpenShift reboots nodes during a run; the Node object tells before Node Feature Discovery."""
    old, new = "417.94.202410090854-0", "418.94.202503121207-0"
    openshift = OpenShiftFacts(driver_toolkits={old: "dtk:17", new: "dtk:18"})
    facts = replace(fleet(), openshift=openshift)
    context, desired = prepare(with_spec("driver"), facts)
    observed = ObservedState(cluster="c", facts=facts)
    looking = SituationBuilder(ClusterPlan(context, desired, observed, plan(context, desired, observed)))
    labels = nfd_labels(OperatingSystem("rhcos", "4.18"))
    for version, (release, image) in enumerate(openshift.driver_toolkits.items()):
        node = node_object("t4-1", labels, version)
        node["status"]["nodeInfo"]["osImage"] = f"Red Hat Enterprise Linux CoreOS {release}"
        found = looking.build(Showing({ref_of(node): node}), {}, {}).desired["driver"]
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
    """A situation and its states are those that are worked out from nothing."""
    fleet = Fleet(seed)
    stack = fleet.stack
    reading = reading_of(stack)
    looking = SituationBuilder(reading)
    others = {ref: each for ref, each in stack.members.items() if ref.type not in WATCHED}
    for _ in range(60):
        found, fresh = (each.build(fleet, others, stack.passed) for each in (looking, SituationBuilder(reading)))
        assert found == fresh
        assert looking.desired == prepare(stack.inventory, found.context.facts)[1]
        assert looking.states(found) == evaluate_states(fresh)
        assert list(looking.states(found)) == list(evaluate_states(fresh))
        fleet.change()


class World:
    """A cluster that is as declared, and a observer that looks at it."""

    def __init__(self, **facts: Any) -> None:
        chosen = with_spec("device_plugin", config_name=CONFIG)
        self.stack = Stack(chosen, ClusterFacts(version="v1.34.0", **facts))
        self.objects = dict(self.stack.members)
        self.observer = StackObserver(reading_of(self.stack), Showing(self.objects))
        self.ref = next(ref for ref in self.objects if ref.kind == "DaemonSet")

    def edit(self, by: list[dict[str, Any]]) -> None:
        live = self.objects[self.ref]
        template = live["spec"]["template"]
        containers = [{**each, "image": "busybox:1"} for each in template["spec"]["containers"]]
        template = {**template, "spec": {**template["spec"], "containers": containers}}
        metadata = {**live["metadata"], "managedFields": by}
        self.objects[self.ref] = {**live, "metadata": metadata, "spec": {**live["spec"], "template": template}}

    @property
    def edited(self) -> frozenset[str]:
        return self.observer.observe(0.0).edited


def test_an_edit_by_hand_and_a_deletion_are_edits() -> None:
    """Also where the same edit is made once more after it was undone."""
    world = World()
    as_declared = world.objects[world.ref]
    for _ in range(2):
        world.objects[world.ref] = as_declared
        assert not world.edited
        world.edit(BY_HAND)
        assert world.edited == {str(world.ref)}
    del world.objects[world.ref]
    assert world.edited == {str(world.ref)}


def test_an_edit_that_no_run_undoes_does_not_count() -> None:
    """What was not as declared before a run is to make so; a field of another program is a conflict."""
    before, taken = World(), World()
    before.edit(BY_HAND)
    found = before.observer.observe(0.0)
    assert (found.objects, found.edited) == ({str(before.ref)}, frozenset())
    assert not taken.edited
    taken.edit(BY_A_PROGRAM)
    assert not taken.edited


class Asked:
    """A cluster that is asked for a plan."""

    def __init__(self) -> None:
        self.questions: list[str] = []

    def get(self, ref: ObjectRef) -> Manifest | None:
        self.questions.append(str(ref))
        return None

    def apply(self, manifest: Manifest, **_: object) -> ApplyResult:
        self.questions.append(str(ref_of(manifest)))
        return ApplyResult(manifest, created=True)


def test_the_plan_of_a_run_is_made_of_live_copies() -> None:
    """Only the lock is asked for, and the server's word on what differs: a fleet is not listed for one edit."""
    world, asked = World(), Asked()
    reading = world.observer.read(cast("KubeClient", asked))
    assert reading.plan.is_empty
    assert asked.questions == ["Lease gpu-operator-resources/sandbox"]
    world.edit(BY_HAND)
    reading = world.observer.read(cast("KubeClient", asked))
    assert {change.ref for change in reading.plan.changes} == {world.ref}
    assert asked.questions[2:] == [str(world.ref)], "also in a namespace that came after the first reading"
    assert reading.observed.members[world.ref] is world.objects[world.ref]
    fresh = plan(reading.context, reading.desired, reading.observed)
    assert (reading.plan.changes, reading.plan.components) == (fresh.changes, fresh.components)


def test_a_run_starts_from_what_is_known_and_keeps_it_apart() -> None:
    """A run reports no ready state again, and the observer continues in another thread."""
    world = World()
    seen = world.observer.observe(0.0).cluster_state
    live = world.observer.live_state(world.observer.read(cast("KubeClient", Asked())))
    assert live.ready == {key: state for key, state in evaluate_states(seen).items() if state.state is State.READY}
    assert live.ready
    node = node_object("late")
    world.objects[ref_of(node)] = node
    among = live.situations.build(live.cache, dict(world.objects), {})
    assert among.observed.facts.nodes != seen.observed.facts.nodes
    del world.objects[ref_of(node)]
    assert world.observer.observe(0.0).cluster_state == seen


def config_map(**data: str) -> Manifest:
    metadata = {"name": CONFIG, "namespace": "gpu-operator-resources", "uid": "u"}
    return {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data}


def test_an_input_that_comes_changes_or_goes_is_seen() -> None:
    """Also before the first look, as the reading remembers what it has read; a label is no content."""
    first, other = config_map(any="v1"), config_map(any="v2")
    labels = {**first, "metadata": {**first["metadata"], "labels": {"a": "b"}}}
    for read, live, is_outdated in (
        ([first], first, False),
        ([first], labels, False),
        ([first], other, True),
        ([first], None, True),
        ([], None, False),
        ([], first, True),
    ):
        world = World(config_maps=config_maps_of(read))
        if live:
            world.objects[ref_of(live)] = live
        assert world.observer.is_outdated() is is_outdated


def monitors(*versions: str, established: str = "True") -> Manifest:
    served = [{"name": name, "served": True} for name in versions]
    conditions = [{"type": "Established", "status": established}]
    return {"metadata": {}, "spec": {"versions": served}, "status": {"conditions": conditions}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [100.0]
    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


@pytest.mark.parametrize(
    ("definition", "known", "seconds"),
    [
        (None, (), 30.0),
        (monitors("v1"), (), 2.0),
        (monitors("v1"), (SERVICE_MONITORS,), 30.0),
        (None, (SERVICE_MONITORS,), 2.0),
        (monitors("v1", established="False"), (), 30.0),
        (monitors("v1alpha1"), (), 30.0),
    ],
)
def test_a_prometheus_operator_that_comes_or_goes_is_seen(
    clock: list[float], definition: Manifest | None, known: tuple[str, ...], seconds: float
) -> None:
    """What an API server has just begun to serve it may not name yet, so once every two seconds at most."""
    world = World(resources=frozenset(known))
    if definition:
        world.objects[MONITOR_DEFINITION] = definition
    assert not world.observer.is_outdated()
    assert world.observer.next_deadline(clock[0]) == seconds
    clock[0] += 2.0
    assert world.observer.is_outdated() is (seconds == 2.0)
    assert world.observer.next_deadline(clock[0]) >= 2.0


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, (SERVICE_MONITORS,)),
        ({"prometheus_rule": PrometheusRuleSpec(enabled=True)}, (SERVICE_MONITORS, PROMETHEUS_RULES)),
        ({"service_monitor": ServiceMonitorSpec(enabled=False)}, ()),
        ({"prometheus_rule": PrometheusRuleSpec(enabled=True), "enabled": False}, ()),
    ],
)
def test_only_definitions_of_wanted_kinds_are_watched(settings: dict[str, Any], names: tuple[str, ...]) -> None:
    found = observer._optional_definitions(with_spec("dcgm_exporter", **settings))
    assert tuple(ref.name for ref in found) == names


def test_a_run_of_a_controller_repeats_failed_validations() -> None:
    """As a run of the command line does."""
    world = World()
    failed = validation_pod(world.stack.validations()[0], "Failed")
    world.stack.put(failed)
    live = world.observer.live_state(reading_of(world.stack))
    seen = live.situations.build(Showing({ref_of(failed): failed}), {}, {})
    assert seen.observed.void_pod_uids == {failed["metadata"]["uid"]}


def image_stream(**tags: str) -> Manifest:
    named = [{"name": tag, "from": {"kind": "DockerImage", "name": image}} for tag, image in tags.items()]
    return {"metadata": {"name": "driver-toolkit", "namespace": "openshift"}, "spec": {"tags": named}}


@pytest.mark.parametrize(
    ("unreadable", "live", "is_outdated"),
    [
        ((), image_stream(old="a"), False),
        ((), {**image_stream(old="a"), "status": {"dockerImageRepository": "x"}}, False),
        ((), image_stream(old="a", new="b"), True),
        ((), None, True),
        (("imagestreams.image.openshift.io",), image_stream(old="a"), False),
    ],
    ids=["as read", "another field", "another tag", "it is gone", "it may not be read"],
)
def test_what_drivers_on_openshift_depend_on_is_followed(
    unreadable: tuple[str, ...], live: Manifest | None, *, is_outdated: bool
) -> None:
    """A new tag of the Driver Toolkit comes before a node boots its release, or after an administrator's help."""
    toolkits = {} if unreadable else {"old": "a"}
    facts = OpenShiftFacts(driver_toolkits=toolkits, unreadable=frozenset(unreadable))
    world = World(openshift=facts)
    if live:
        world.objects[DRIVER_TOOLKIT] = live
    assert world.observer.is_outdated() is is_outdated


def test_an_object_of_openshift_is_watched_if_it_can_be_read() -> None:
    scopes = {scope_of_object(ref) for ref in FOLLOWED}
    plain, whole, part = (
        {*watched_scopes(reading_of(World(openshift=facts).stack))}
        for facts in (None, OpenShiftFacts(), OpenShiftFacts(unreadable=frozenset({"proxies.config.openshift.io"})))
    )
    assert not scopes & plain
    assert scopes <= whole
    assert scopes - part == {scope_of_object(PROXY)}


def pool_object(wanted: str, updated: int) -> Manifest:
    """The MachineConfigPool ``gpu`` of the node t4-1."""
    role = {"matchLabels": {"machineconfiguration.openshift.io/role": "gpu"}}
    nodes = {"matchLabels": {"pool": "gpu"}}
    spec = {"machineConfigSelector": role, "nodeSelector": nodes, "configuration": {"name": wanted}}
    status = {"configuration": {"name": "rendered-1"}, "machineCount": 1, "updatedMachineCount": updated}
    kind = {"apiVersion": MACHINE_CONFIG_POOL.api_version, "kind": MACHINE_CONFIG_POOL.kind}
    metadata = {"name": "gpu", "resourceVersion": f"{wanted}-{updated}"}
    return {**kind, "metadata": metadata, "spec": spec, "status": status}


class Following(Showing):
    """A cache that takes further scopes."""

    def watch(self, scope: Scope) -> None:
        """Have all objects already."""


def test_a_rollout_leaves_nodes_alone_until_their_reboot() -> None:
    """The Machine Config Operator drains the node by itself, and its driver starts in the new boot."""
    stack = Stack(facts=labelled())
    for node in ("t4-1", "t4-2"):
        stack.put(outdated(stack.pod("driver", node)))
    raw = evaluate_states(stack.situation)
    raw["machine_config", "t4-1"] = NodeState(component="machine_config", node="t4-1", state=State.PROGRESSING)
    nodes = [node_object(each.name, dict(each.labels)) for each in stack.context.facts.nodes]
    api = cast("KubeClient", SimpleNamespace(eviction_version=lambda: "policy/v1"))
    controller = RolloutController(api, stack.inventory)
    controller.update(stack.situation, Following({ref_of(each): each for each in nodes}), raw, {})
    assert controller.nodes["t4-1"].exclusion_reason == AWAITS_CONFIG
    assert "t4-1" not in {action.node for action in controller.decision.actions}
    assert "t4-2" in {action.node for action in controller.decision.actions}


def test_a_run_follows_the_pools_and_reads_each_rendered_config_once() -> None:
    node = node_object("t4-1", {**nfd_labels(), "pool": "gpu"})
    node["metadata"]["annotations"] = {CURRENT_CONFIG: "rendered-1", DESIRED_CONFIG: "rendered-1", CONFIG_STATE: "Done"}
    nodes = [node_facts(node)]
    facts = replace(fleet(), openshift=OpenShiftFacts(pools=machine_pools([pool_object("rendered-1", 1)], nodes)))
    stack = Stack(facts=facts)
    view, asked = SituationBuilder(reading_of(stack)), list[set[str]]()

    def read(names: Iterable[str]) -> dict[str, RenderedConfig]:
        asked.append({*names})
        held = frozenset(identity_of(each).digest for each in stack.desired["machine_config"])
        return {name: RenderedConfig(held if name == "rendered-2" else frozenset()) for name in names}

    view.read_rendered = read
    for wanted, updated in (("rendered-1", 1), ("rendered-2", 0), ("rendered-2", 0), ("rendered-2", 1)):
        objects = {ref_of(each): each for each in (node, pool_object(wanted, updated))}
        seen = view.build(Showing(objects), {}, {})
        [pool] = seen.context.openshift.pools if seen.context.openshift else ()
        assert (pool.wanted, pool.updated, pool.nodes) == (wanted, updated, ("t4-1",))
        states = view.states(seen)
        assert states == evaluate_states(seen), "no memo hides what the pool says of an unchanged node"
    assert asked == [{"rendered-1"}, {"rendered-2"}]
    assert Scope(MACHINE_CONFIG_POOL) in watched_scopes(reading_of(stack))
    assert Scope(MACHINE_CONFIG_POOL) not in watched_scopes(reading_of(Stack()))
