"""A stack between two runs: what was edited, and what its declaration refers to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import ApplyResult, Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import SERVICE_MONITORS, config_maps_of, secrets_of
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.progress import State
from gpu_provision.model.specs import ServiceMonitorSpec
from gpu_provision.planning.plan import plan
from gpu_provision.planning.states import states
from gpu_provision.reconcile import observer
from gpu_provision.reconcile.apply import DEFINITION
from gpu_provision.reconcile.observer import CONFIG_MAP, SECRET, StackObserver, scope_of_object, watched_scopes
from gpu_provision.reconcile.plan import ClusterPlan
from tests.components.builders import nfd_labels, with_spec
from tests.planning.builders import Stack, validation_pod

BY_HAND = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {}}]
BY_A_PROGRAM = [{"manager": "somebodys-controller", "operation": "Update", "fieldsV1": {}}]
CONFIG, LICENCE = "time-slicing", "licence"


class Showing(Mirror):
    """A mirror of objects that a test puts there."""

    def __init__(self, objects: dict[ObjectRef, Manifest]) -> None:
        """Show these; they may be changed."""
        self.objects = objects

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return those of a kind, or of one name."""
        kind = what.kind if isinstance(what, Scope) else what
        fields = what.field_selector if isinstance(what, Scope) else ""
        name = fields.partition(",")[0].removeprefix("metadata.name=")
        return {ref: each for ref, each in self.objects.items() if ref.type == kind and name in {"", ref.name}}

    def shared(self) -> Mirror:
        """Return the same objects."""
        return self


def node_object(name: str) -> Manifest:
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "labels": nfd_labels()}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


class World:
    """A cluster that is as declared, and a resident that looks at it."""

    def __init__(self, **facts: Any) -> None:
        """Read it once."""
        chosen = with_spec("device_plugin", config_name=CONFIG)
        stack = Stack(chosen, ClusterFacts(version="v1.34.0", **facts))
        draft = plan(stack.context, stack.desired, stack.observed)
        self.objects = dict(stack.members)
        self.resident = StackObserver(
            ClusterPlan(stack.context, stack.desired, stack.observed, draft), Showing(self.objects)
        )
        self.ref = next(ref for ref in self.objects if ref.kind == "DaemonSet")

    def edit(self, by: list[dict[str, Any]]) -> None:
        """Change an image."""
        live = self.objects[self.ref]
        template = live["spec"]["template"]
        containers = [{**each, "image": "busybox:1"} for each in template["spec"]["containers"]]
        template = {**template, "spec": {**template["spec"], "containers": containers}}
        metadata = {**live["metadata"], "managedFields": by}
        self.objects[self.ref] = {**live, "metadata": metadata, "spec": {**live["spec"], "template": template}}

    @property
    def edited(self) -> frozenset[str]:
        """What was edited."""
        return self.resident.look(0.0).edited


def test_an_edit_by_hand_and_a_deletion_are_edits() -> None:
    world = World()
    assert not world.edited
    world.edit(BY_HAND)
    assert world.edited == {str(world.ref)}
    del world.objects[world.ref]
    assert world.edited == {str(world.ref)}


def test_an_edit_that_is_undone_and_made_again_is_one_again() -> None:
    world = World()
    as_declared = world.objects[world.ref]
    for _ in range(2):
        world.objects[world.ref] = as_declared
        assert not world.edited
        world.edit(BY_HAND)
        assert world.edited


def test_what_was_not_as_declared_before_is_no_edit() -> None:
    """A run is there to make it so."""
    world = World()
    world.edit(BY_HAND)
    found = world.resident.look(0.0)
    assert found.objects == {str(world.ref)}
    assert not found.edited


def test_a_field_that_another_program_has_taken_is_no_edit() -> None:
    """It is a conflict: another run would not undo it either."""
    world = World()
    assert not world.edited
    world.edit(BY_A_PROGRAM)
    assert not world.edited


class Asked:
    """A cluster that is asked for a plan."""

    def __init__(self) -> None:
        """The lock is free."""
        self.questions: list[str] = []

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return nothing."""
        self.questions.append(str(ref))
        return None

    def apply(self, manifest: Manifest, **_: object) -> ApplyResult:
        """Say yes."""
        self.questions.append(str(ref_of(manifest)))
        return ApplyResult(manifest, created=True)


def test_the_plan_of_a_run_is_made_of_live_copies() -> None:
    """Only the lock is asked for, and the server's word on what differs: a fleet is not listed for one edit."""
    world, asked = World(), Asked()
    reading = world.resident.read(cast("Cluster", asked))
    assert reading.plan.is_empty
    assert asked.questions == ["Lease gpu-operator-resources/sandbox"]
    world.edit(BY_HAND)
    reading = world.resident.read(cast("Cluster", asked))
    assert {change.ref for change in reading.plan.changes} == {world.ref}
    assert asked.questions[2:] == [str(world.ref)], "also in a namespace that came after the first reading"
    assert reading.observed.members[world.ref] is world.objects[world.ref]


def test_the_plan_of_a_run_is_that_of_a_reading_of_its_own() -> None:
    """Nothing is worked out again, and nothing is another for that."""
    world = World()
    world.edit(BY_HAND)
    reading = world.resident.read(cast("Cluster", Asked()))
    fresh = plan(reading.context, reading.desired, reading.observed)
    assert reading.plan.changes == fresh.changes
    assert reading.plan.components == fresh.components


def test_a_run_starts_from_what_is_known_and_keeps_it_apart() -> None:
    """What was ready is not told again; and who looks on meanwhile does so in another thread."""
    world = World()
    seen = world.resident.look(0.0).seen
    live = world.resident.live(world.resident.read(cast("Cluster", Asked())))
    assert live.ready == {key: state for key, state in states(seen).items() if state.state is State.READY}
    assert live.ready
    node = node_object("late")
    world.objects[ref_of(node)] = node
    among = live.situations.build(live.mirror, dict(world.objects), {})
    assert among.observed.facts.nodes != seen.observed.facts.nodes
    del world.objects[ref_of(node)]
    assert world.resident.look(0.0).seen == seen


def config_map(**data: str) -> Manifest:
    metadata = {"name": CONFIG, "namespace": "gpu-operator-resources", "uid": "u"}
    return {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data}


def test_an_input_edited_before_the_first_look_is_seen() -> None:
    """The reading remembers what it has read; a copy that is made later does not."""
    before, after = config_map(any="v1"), config_map(any="v2")
    world = World(config_maps=config_maps_of([before]))
    world.objects[ref_of(before)] = before
    assert not world.resident.is_outdated()
    world.objects[ref_of(before)] = after
    assert world.resident.is_outdated()
    del world.objects[ref_of(before)]
    assert world.resident.is_outdated()


def test_an_input_that_comes_only_later_is_seen() -> None:
    world = World()
    assert not world.resident.is_outdated()
    found = config_map(any="v1")
    world.objects[ref_of(found)] = found
    assert world.resident.is_outdated()


def monitors(*versions: str, established: str = "True") -> Manifest:
    served = [{"name": name, "served": True} for name in versions]
    conditions = [{"type": "Established", "status": established}]
    return {"metadata": {}, "spec": {"versions": served}, "status": {"conditions": conditions}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time."""
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
        world.objects[DEFINITION] = definition
    assert not world.resident.is_outdated()
    assert world.resident.next_deadline(clock[0]) == seconds
    clock[0] += 2.0
    assert world.resident.is_outdated() is (seconds == 2.0)
    assert world.resident.next_deadline(clock[0]) >= 2.0


def test_where_no_such_object_is_wanted_it_is_not_followed() -> None:
    scopes = {scope_of_object(DEFINITION)}
    for on in (True, False):
        stack = Stack(with_spec("dcgm_exporter", service_monitor=ServiceMonitorSpec(enabled=on)))
        draft = plan(stack.context, stack.desired, stack.observed)
        reading = ClusterPlan(stack.context, stack.desired, stack.observed, draft)
        assert (scopes <= {*watched_scopes(reading)}) is on


def test_a_label_of_an_input_is_no_other_declaration() -> None:
    before = config_map(any="v1")
    world = World(config_maps=config_maps_of([before]))
    world.objects[ref_of(before)] = {**before, "metadata": {**before["metadata"], "labels": {"a": "b"}}}
    assert not world.resident.is_outdated()


@pytest.mark.parametrize("data", [{"gridd.conf": "YQ=="}, {}])
def test_digests_of_secrets_do_not_reveal_them(data: dict[str, str]) -> None:
    metadata = {"name": LICENCE, "namespace": "gpu-operator-resources", "uid": "u"}
    secret = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": metadata}
    one, other = secrets_of([{**secret, "data": data}]), secrets_of([{**secret, "data": {"gridd.conf": "Yg=="}}])
    assert one.keys() == {LICENCE}
    assert one != other
    assert "YQ" not in one[LICENCE]


def test_a_run_of_a_controller_repeats_failed_validations() -> None:
    """As a run of the command line does."""
    world = World()
    stack = Stack(with_spec("device_plugin", config_name=CONFIG), ClusterFacts(version="v1.34.0"))
    failed = validation_pod(stack.validations()[0], "Failed")
    observed = replace(stack.observed, pods={ref_of(failed): failed})
    reading = ClusterPlan(stack.context, stack.desired, observed, plan(stack.context, stack.desired, observed))
    live = world.resident.live(reading)
    seen = live.situations.build(Showing({ref_of(failed): failed}), {}, {})
    assert seen.observed.void == {failed["metadata"]["uid"]}
