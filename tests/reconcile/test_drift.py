"""What drift makes of a reading of a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.history import rollback
from gpu_provision.model.cluster import Kind, ref_of
from gpu_provision.model.history import History
from gpu_provision.model.plan import Action, Drift, Origin
from gpu_provision.planning.plan import plan
from gpu_provision.reconcile import drift
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.session import Session
from tests.components.builders import fleet
from tests.planning.builders import Stack


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the drift of a stack of which nothing is on record."""

    def found(stack: Stack) -> Drift:
        monkeypatch.setattr(rollback, "read_history", lambda *_: History(()))
        context, desired, observed = stack.context, stack.desired, stack.observed
        reading = ClusterPlan(context, desired, observed, plan(context, desired, observed))
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": each.name}} for each in context.facts.nodes]
        cluster = SimpleNamespace(list=lambda _: SimpleNamespace(items=nodes))
        return drift.read(cast("Session", SimpleNamespace(cluster=cluster, reading=lambda: reading)))

    return found


def test_an_edit_is_seen_while_the_pods_that_it_started_come_up(found: Any) -> None:
    """The workload differs, and is awaited as well: one must not hide the other."""
    stack = Stack()
    exporter = stack.daemonset("dcgm_exporter")
    live = stack.members[ref_of(exporter)]
    (container,) = live["spec"]["template"]["spec"]["containers"]
    pod_spec = {**live["spec"]["template"]["spec"], "containers": [{**container, "image": "example.com/other:1"}]}
    template = {**live["spec"]["template"], "spec": pod_spec}
    stack.members[ref_of(exporter)] = {**live, "spec": {**live["spec"], "template": template}}
    stack.put({**stack.pod("dcgm_exporter", "t4-1"), "status": {"phase": "Pending"}})
    told = found(stack).differences
    assert [each.action for each in told if each.ref == ref_of(exporter)] == [Action.UPDATE, Action.WAIT]
    (image,) = next(each.fields for each in told if each.action is Action.UPDATE)
    assert image.found == "example.com/other:1"


def test_nothing_drifts_where_the_stack_is_not_installed(found: Any) -> None:
    """Also where a removal has left the definitions, which are not taken along without being asked for."""
    stack = Stack(facts=fleet())
    stack.members = {ref: live for ref, live in stack.members.items() if ref.type == _DEFINITION}
    stack.pods, stack.passed = {}, {}
    assert stack.members
    told = found(stack)
    assert not told.installed
    assert {each.origin for each in told.differences} == {Origin.PENDING}
    assert found(Stack()).installed


_DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
