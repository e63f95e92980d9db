"""A stack between two runs: its state and the pending changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.components.monitoring import PROMETHEUS_RULES, SERVICE_MONITORS
from gpu_provision.kube.client import ApplyResult, KubeClient
from gpu_provision.kube.informer import scope_of_object
from gpu_provision.kube.observe import CONFIG_MAP, config_maps_of
from gpu_provision.kube.openshift import DRIVER_TOOLKIT, FOLLOWED, PROXY
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObjectRef, ref_of
from gpu_provision.model.monitoring_specs import PrometheusRuleSpec, ServiceMonitorSpec
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.model.progress import State
from gpu_provision.planning.plan import plan
from gpu_provision.planning.states import evaluate_states
from gpu_provision.reconcile import observer
from gpu_provision.reconcile.observer import MONITOR_DEFINITION, StackObserver, watched_scopes
from tests.components.builders import with_spec
from tests.planning.builders import Stack, validation_pod
from tests.reconcile.builders import FakeCache, node_object, reading_of

BY_HAND = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {}}]
BY_A_PROGRAM = [{"manager": "somebodys-controller", "operation": "Update", "fieldsV1": {}}]
CONFIG = "time-slicing"


class World:
    """A cluster that is as declared, and an observer that looks at it."""

    def __init__(self, **facts: Any) -> None:
        chosen = with_spec("device_plugin", config_name=CONFIG)
        self.stack = Stack(chosen, ClusterFacts(version="v1.34.0", **facts))
        self.objects = dict(self.stack.members)
        self.observer = StackObserver(reading_of(self.stack), FakeCache(self.objects))
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
    among = live.builder.build(live.cache, dict(world.objects), {})
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
    seen = live.builder.build(FakeCache({ref_of(failed): failed}), {}, {})
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
