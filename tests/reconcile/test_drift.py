"""Drift or a changed inventory: decided by the record of applied objects, else by field managers."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.history import rollback
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.history import History
from gpu_provision.model.plan import Action, Change, Difference, Drift, Origin, Writer
from gpu_provision.planning.diff import FIELD_MANAGER, differences
from gpu_provision.planning.managed_fields import owners_by_path, writers_of
from gpu_provision.planning.plan import applied_metadata, plan, pod_changes
from gpu_provision.reconcile.drift import KnownState, find_drift, read_drift
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.session import Session
from tests.components.builders import fleet, inventory
from tests.planning.builders import Stack, labelled, stack_with_pod_metadata, with_driver_pod, with_node

HAND = Writer("kubectl-edit", "2026-11-21T08:00:00Z")


def workload(image: str, *, arguments: tuple[str, ...] = (), replicas: int | None = None) -> Manifest:
    container: dict[str, Any] = {"name": "main", "image": image}
    container |= {"args": list(arguments)} if arguments else {}
    spec: dict[str, Any] = {"template": {"spec": {"containers": [container]}}}
    spec |= {"replicas": replicas} if replicas is not None else {}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "n"}, "spec": spec}


def owned(manifest: Manifest, **of: tuple[str, ...]) -> Manifest:
    """Add managedFields: field manager -> fields of the container, or of the spec."""
    entries = []
    for manager, fields in of.items():
        inner = {f"f:{name}": {} for name in fields if name != "replicas"}
        container = {'k:{"name":"main"}': {".": {}, **inner}}
        spec: dict[str, Any] = {"f:template": {"f:spec": {"f:containers": container}}} if inner else {}
        spec |= {"f:replicas": {}} if "replicas" in fields else {}
        name = manager.replace("_", "-")
        entries.append({"manager": name, "time": HAND.time, "operation": "Update", "fieldsV1": {"f:spec": spec}})
    return {**manifest, "metadata": {**manifest["metadata"], "managedFields": entries}}


def difference_of(declared: Manifest, live: Manifest, applied: Manifest | None = None) -> Difference:
    change = Change(
        component="driver",
        action=Action.UPDATE,
        ref=ref_of(live),
        fields=differences(declared, live),
        manifest=declared,
    )
    known = KnownState(live={ref_of(live): live}, applied={ref_of(applied): applied} if applied else None)
    (difference,) = find_drift([change], known)
    return difference


def test_an_owned_field_has_the_applied_value() -> None:
    difference = difference_of(workload("b"), owned(workload("a"), gpu_provision=("image", "name")))
    assert difference.origin is Origin.PENDING
    assert difference.fields[0].writer is None
    assert FIELD_MANAGER == "gpu-provision"


def test_a_field_of_another_client_is_drift_and_names_them() -> None:
    live = owned(workload("a"), gpu_provision=("name",), kubectl_edit=("image",))
    difference = difference_of(workload("b"), live)
    (field,) = difference.fields
    assert (difference.origin, field.found, field.declared, field.writer) == (Origin.DRIFT, "a", "b", HAND)


def test_a_field_that_is_gone_has_no_owner_and_may_be_either() -> None:
    difference = difference_of(workload("a", arguments=("-v",)), owned(workload("a"), gpu_provision=("image", "name")))
    assert difference.origin is Origin.UNKNOWN


@pytest.mark.parametrize(("applied", "origin"), [("same", Origin.DRIFT), ("other", Origin.PENDING)])
def test_the_digest_decides_about_a_missing_template_field(applied: str, origin: Origin) -> None:
    """The digest is of the content that was applied."""
    declared = marked(workload("a", arguments=("-v",)), "same")
    live = owned(marked(workload("a"), applied), gpu_provision=("image", "name"))
    fields = {field.path.rpartition(".")[2]: field.origin for field in difference_of(declared, live).fields}
    assert fields["args"] is origin


def marked(manifest: Manifest, digest: str) -> Manifest:
    """Mark the pod template with a digest."""
    template = {**manifest["spec"]["template"], "metadata": {"labels": {"gpu-provision.io/digest": digest}}}
    return {**manifest, "spec": {**manifest["spec"], "template": template}}


@pytest.mark.parametrize(
    ("applied", "live", "origin"), [("a", "a", Origin.PENDING), ("b", "a", Origin.DRIFT), ("c", "a", Origin.DRIFT)]
)
def test_with_a_record_the_values_tell(applied: str, live: str, origin: Origin) -> None:
    """Any owner counts: another tool may have applied the same value."""
    by_path = owned(workload(live), gpu_provision=("image",))
    assert difference_of(workload("b"), by_path, workload(applied)).origin is origin


@pytest.mark.parametrize("key", ["team", "example.com/team"])
def test_a_label_of_a_pool_that_was_changed_is_drift(key: str) -> None:
    """Whatever its key: the plan and the record have one path for it."""
    chosen = inventory()
    pools = {name: replace(pool, labels={key: "ml"}) for name, pool in chosen.pools.items()}
    chosen = replace(chosen, pools=pools)
    facts = labelled(chosen=chosen)
    node = next(each for each in facts.nodes if each.name == "t4-1")
    edited = {**node.labels, key: "ai"}
    stack = Stack(chosen, with_node(facts, node.name, labels=edited))
    (made,) = (each for each in stack.plan.changes if each.ref.kind == "Node")
    (applied,) = (item for item in stack.desired["node_labels"] if ref_of(item) == made.ref)
    live = {**applied, "metadata": {"name": node.name, "labels": edited}}
    (difference,) = find_drift([made], KnownState(live={made.ref: live}, applied={made.ref: applied}))
    assert [(each.found, each.origin) for each in difference.fields] == [("ai", Origin.DRIFT)]


def change(action: Action, name: str = "x") -> Change:
    return Change(component="driver", action=action, ref=ObjectRef("v1", "Service", "n", name))


LIVE = {ObjectRef("v1", "ConfigMap", "n", "stack"): workload("a")}
WAS_THERE = {ObjectRef("v1", "Service", "n", "x"): workload("a")}


@pytest.mark.parametrize(
    ("action", "known", "origin"),
    [
        (Action.CREATE, KnownState(live={}), Origin.PENDING),
        (Action.CREATE, KnownState(live=LIVE), Origin.UNKNOWN),
        (Action.CREATE, KnownState(live=LIVE, applied=WAS_THERE), Origin.DRIFT),
        (Action.CREATE, KnownState(live=LIVE, applied={}), Origin.PENDING),
        (Action.DELETE, KnownState(live=LIVE), Origin.PENDING),
        (Action.DELETE, KnownState(live=LIVE, applied=WAS_THERE), Origin.PENDING),
        (Action.DELETE, KnownState(live=LIVE, applied={}), Origin.DRIFT),
        (Action.RUN, KnownState(live=LIVE, applied=WAS_THERE), Origin.NOT_READY),
        (Action.RUN, KnownState(live=LIVE, applied={}), Origin.PENDING),
        (Action.WAIT, KnownState(live=LIVE, applied={}), Origin.NOT_READY),
    ],
)
def test_whole_objects(action: Action, known: KnownState, origin: Origin) -> None:
    """An empty cluster is one to which nothing was applied; what was applied and is gone was removed."""
    assert [each.origin for each in find_drift([change(action)], known)] == [origin]


def test_without_a_record_a_validation_is_pending() -> None:
    alone = find_drift([change(Action.RUN)], KnownState(live=LIVE))
    beside = find_drift([change(Action.DELETE, "y"), change(Action.RUN)], KnownState(live=LIVE))
    assert [each.origin for each in alone] == [Origin.NOT_READY]
    assert [each.origin for each in beside] == [Origin.PENDING, Origin.PENDING]


def test_owners_of_a_whole_are_owners_of_its_parts() -> None:
    """Lists without keys and selectors are owned as a whole; a list item that is gone may have parts that are owned."""
    by_path = owners_by_path(owned(workload("a", arguments=("x", "y")), kubectl_edit=("args",)))
    container = "spec.template.spec.containers[main]"
    assert writers_of(f"{container}.args[1]", by_path) == (HAND,)
    assert writers_of("spec.template", by_path) == (HAND, HAND)
    assert writers_of(f"{container}.image", by_path) == (HAND,), "the item has that owner"
    assert writers_of("metadata.labels.x", by_path) == ()


_DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@pytest.fixture
def drift_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the drift of a stack without a record."""

    def drift_of(stack: Stack) -> Drift:
        monkeypatch.setattr(rollback, "read_history", lambda *_: History(()))
        context, desired, observed = stack.context, stack.desired, stack.observed
        reading = ClusterPlan(context, desired, observed, plan(context, desired, observed))
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": each.name}} for each in context.facts.nodes]
        cluster = SimpleNamespace(list=lambda _: SimpleNamespace(items=nodes))
        return read_drift(cast("Session", SimpleNamespace(cluster=cluster, cluster_plan=lambda: reading)))

    return drift_of


def test_an_edit_is_seen_while_the_pods_that_it_started_come_up(drift_of: Any) -> None:
    """The workload differs, and is awaited as well: one must not hide the other."""
    stack = Stack()
    ref = stack.edit("dcgm_exporter", image="example.com/other:1")
    stack.put({**stack.pod("dcgm_exporter", "t4-1"), "status": {"phase": "Pending"}})
    differences = drift_of(stack).differences
    assert [each.action for each in differences if each.ref == ref] == [Action.UPDATE, Action.WAIT]
    (image,) = next(each.fields for each in differences if each.action is Action.UPDATE)
    assert image.found == "example.com/other:1"


def test_nothing_drifts_where_the_stack_is_not_installed(drift_of: Any) -> None:
    """Also where a removal has left the definitions, which are not taken along without being asked for."""
    stack = Stack(facts=fleet())
    stack.members = {ref: live for ref, live in stack.members.items() if ref.type == Kind(*_DEFINITION)}
    stack.pods, stack.passed = {}, {}
    assert stack.members
    drift = drift_of(stack)
    assert not drift.installed
    assert {each.origin for each in drift.differences} == {Origin.PENDING}
    assert drift_of(Stack()).installed


@pytest.mark.parametrize(
    ("live", "origin"), [({"team": "hand"}, Origin.DRIFT), ({"team": "ai", "tier": "a"}, Origin.PENDING)]
)
def test_drift_of_a_pod_is_reported_from_an_edited_inventory(live: dict[str, str], origin: Origin) -> None:
    """By what its DaemonSet gave it when it was applied last."""
    made = with_driver_pod(stack_with_pod_metadata(before={"tier": "a"}), labels=live)
    (change,) = pod_changes(made.situation)
    applied = with_pod_labels(made.daemonset("driver", "t4-1"), live if origin is Origin.PENDING else {})
    known = KnownState(live=made.pods, applied={change.ref: applied_metadata(applied)})
    (difference,) = find_drift([change], known)
    assert difference.origin is origin


def with_pod_labels(daemonset: Manifest, marks: dict[str, str]) -> Manifest:
    """Return a DaemonSet as an earlier inventory has it."""
    edited: Any = copy.deepcopy(daemonset)
    edited["spec"]["template"]["metadata"]["labels"] |= marks
    return dict(edited)
