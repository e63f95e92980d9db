"""The changes of a plan and their effects."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.components.labels import HOST_DRIVER
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObservedState, ref_of
from gpu_provision.model.findings import Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.planning.plan import plan, pod_changes
from gpu_provision.planning.prepare import inventory_findings, prepare
from tests.components.builders import fleet, inventory, with_spec
from tests.planning.builders import (
    Stack,
    labelled,
    outdated,
    restarted,
    stack_with_pod_metadata,
    terminating,
    validation_pod,
    with_driver_pod,
    without_node,
)


def test_a_cluster_as_declared_has_an_empty_plan() -> None:
    assert Stack().plan.changes == ()


def test_an_empty_cluster_gets_everything_in_dependency_order() -> None:
    context, desired = prepare(inventory(), ClusterFacts())
    made = plan(context, desired, ObservedState(cluster="offline", facts=ClusterFacts()))
    order = [change.component for change in made.changes]
    assert order == sorted(order, key=list(desired).index)
    assert {change.action for change in made.changes} == {Action.CREATE, Action.UPDATE, Action.RUN}
    assert all(not change.certain for change in made.changes if change.ref.kind == "Node"), "NFD has not spoken"


def test_a_changed_field_names_nodes_where_pods_restart() -> None:
    stack = Stack()
    ref = stack.edit("gfd", image="example.org/other:1")
    (change,) = stack.plan.changes
    assert (change.action, change.ref) == (Action.UPDATE, ref)
    assert [field.old for field in change.fields] == ["example.org/other:1"]
    assert (change.nodes, change.effects) == (("h100-1", "t4-1", "t4-2"), ())


def test_a_driver_restarts_only_where_its_group_is() -> None:
    """The group of another operating system has other pods, whatever its DaemonSet is called."""
    (change,) = (each for each in upgraded(Stack()).changes if each.action is Action.UPDATE)
    assert (change.nodes, change.effects) == (("t4-1", "t4-2"), ())


def upgraded(stack: Stack) -> Plan:
    """Plan a stack whose drivers on Ubuntu 22.04, DaemonSet and pods, are of another installation."""
    daemonset = stack.daemonset("driver", "t4-1")
    stack.members[ref_of(daemonset)] = _of_another_installation(stack.members[ref_of(daemonset)], "template")
    for node in ("t4-1", "t4-2"):
        stack.put(_of_another_installation(stack.pod("driver", node)))
    return stack.plan


def _of_another_installation(manifest: Manifest, *below: str) -> Manifest:
    edited = copy.deepcopy(manifest)
    pod = edited
    for key in ("spec", *below):
        pod = pod[key]
    for container in (pod["spec"] if below else pod)["containers"]:
        for variable in container["env"]:
            if variable["name"] == "DRIVER_CONFIG_DIGEST":
                variable["value"] = "of another"
    return edited


def test_a_change_outside_the_installation_restarts_no_driver() -> None:
    """Labels, resources, pull policy: the running pods stay as they are, and the plan has that remark."""
    stack = Stack()
    stack.edit("driver", imagePullPolicy="Always")
    (change,) = stack.plan.changes
    assert (change.nodes, change.effects) == ((), ("no driver restart",))


def test_pods_restart_only_on_nodes_where_their_daemonset_stays() -> None:
    """A node that left the inventory loses them for good."""
    chosen = inventory()
    left = replace(chosen, nodes=tuple(node for node in chosen.nodes if node.name != "t4-2"))
    stack = Stack(left, labelled(chosen=chosen))
    ref = stack.edit("gfd", image="example.org/other:1")
    (change,) = (each for each in stack.plan.changes if each.ref == ref)
    assert change.nodes == ("h100-1", "t4-1")


@pytest.mark.parametrize(
    ("component", "validations"),
    [
        ("toolkit", ["driver_validation", "device_plugin_validation"]),
        ("device_plugin", ["device_plugin_validation"]),
        ("gfd", []),
    ],
)
def test_a_validation_runs_again_where_its_pods_are_replaced(component: str, validations: list[str]) -> None:
    """Also if its own content stays the same; only where the pod is behind."""
    stack = Stack()
    stack.put(outdated(stack.pod(component, "t4-1")))
    runs = [change for change in stack.plan.changes if change.action is Action.RUN]
    assert [change.component for change in runs] == validations
    assert all(change.effects == ("runs vectorAdd on t4-1",) for change in runs)


def test_validation_pods_without_successor_are_deleted() -> None:
    """Here the device plugin was turned off; those of the driver stay."""
    before = Stack()
    (pod,) = (pod for pod in before.validations() if "t4-1" in pod["metadata"]["name"])
    chosen = inventory()
    specs = replace(chosen.specs, device_plugin=replace(chosen.specs.device_plugin, enabled=False))
    stack = Stack(replace(chosen, specs=specs))
    stack.put(validation_pod(pod, "Succeeded"))
    (change,) = stack.plan.changes
    assert (change.action, change.component, change.ref) == (Action.DELETE, "device_plugin_validation", ref_of(pod))


def test_the_first_vector_add_is_the_pod_of_the_validator() -> None:
    """A live one is deleted for another run; before there is one, it has the name of its DaemonSet and its node."""
    stack = Stack()
    pod = stack.pod("validator", "t4-1")
    stack.put(restarted(stack.pod("driver", "t4-1"), "2026-11-21T08:00:00Z"))
    (run, _) = (each for each in stack.plan.changes if each.action is Action.RUN)
    assert (run.component, run.ref) == ("driver_validation", ref_of(pod))
    stack.remove(pod)
    (run, _) = (each for each in stack.plan.changes if each.action is Action.RUN)
    assert run.ref.name == "nvidia-operator-validator-t4-1"


def test_a_node_that_is_missing_is_a_finding_and_no_change() -> None:
    stack = Stack(facts=without_node(labelled(), "t4-2"))
    assert stack.plan.changes == ()
    (finding,) = inventory_findings(stack.context)
    assert finding.code == "GP201"
    assert "t4-2" in finding.what


def test_an_unverified_server_is_one_warning() -> None:
    context, _ = prepare(inventory(), replace(fleet(), unverified="https://10.0.0.1:6443"))
    (finding,) = inventory_findings(context)
    assert (finding.code, finding.severity, finding.where) == ("GP313", Severity.WARNING, "https://10.0.0.1:6443")
    assert "insecure-skip-tls-verify" in finding.evidence


def test_a_node_that_changes_drivers_has_a_line_of_words() -> None:
    """To its own, and back to a container's; nodes that stay have no remark."""
    auto = with_spec("driver", prefer_host=True)
    assert _driver_words(replace(fleet(), host_drivers={"t4-1": "550.90.07"}), auto) == {
        "t4-1": ("host driver 550.90.07 on t4-1",)
    }
    own = replace(fleet().nodes[0], labels={**fleet().nodes[0].labels, HOST_DRIVER: "550.90.07"})
    facts = replace(fleet(), nodes=(own,), host_drivers={"t4-1": ""})
    assert _driver_words(facts, auto) == {"t4-1": ("driver container on t4-1",)}


def _driver_words(facts: ClusterFacts, wanted: Inventory) -> dict[str, tuple[str, ...]]:
    context, desired = prepare(wanted, facts)
    changes = plan(context, desired, ObservedState(cluster="c", facts=facts)).changes_of("node_labels")
    return {change.ref.name: change.effects for change in changes if change.effects}


def pod_changes_of(made: Stack) -> tuple[Change, ...]:
    return tuple(pod_changes(made.situation))


def test_a_pod_as_its_template_has_nothing_to_change() -> None:
    """Nor has one with more than that, as other programs write to pods, too; or one that a killed run has patched."""
    made = stack_with_pod_metadata()
    assert pod_changes_of(made) == ()
    assert pod_changes_of(stack_with_pod_metadata(before={"tier": "a"})) == (), "its DaemonSet is yet to be applied"
    injected: Any = {"labels": {"controller-revision-hash": "old", "by": "webhook"}, "annotations": {"cni": "10.0.0.1"}}
    assert pod_changes_of(with_driver_pod(made, **injected)) == ()


@pytest.mark.parametrize(
    ("before", "marks", "patch", "fields"),
    [
        ({}, {"labels": {"team": None}}, {"labels": {"team": "ml"}}, [("metadata.labels.team", None, "ml")]),
        ({}, {"labels": {"team": "ai"}}, {"labels": {"team": "ml"}}, [("metadata.labels.team", "ai", "ml")]),
        ({}, {"annotations": {"example.com/contact": "bob"}}, {"annotations": {"example.com/contact": "ada"}},
         [('metadata.annotations."example.com/contact"', "bob", "ada")]),
        ({"tier": "a"}, {"labels": {"tier": "a"}}, {"labels": {"tier": None}}, [("metadata.labels.tier", "a", None)]),
        ({"tier": "a"}, {"labels": {"tier": "a", "team": "ai"}}, {"labels": {"team": "ml", "tier": None}},
         [("metadata.labels.team", "ai", "ml"), ("metadata.labels.tier", "a", None)]),
    ],
    ids=["added", "another value", "an annotation", "removed", "several"],
)  # fmt: skip
def test_differences_of_a_pod_are_one_patch(
    before: dict[str, str], marks: Any, patch: dict[str, Any], fields: list[Any]
) -> None:
    (change,) = pod_changes_of(with_driver_pod(stack_with_pod_metadata(before=before), **marks))
    pod = "nvidia-driver-daemonset-ubuntu22.04-t4-1"
    assert (change.action, change.ref.kind, change.ref.name) == (Action.UPDATE, "Pod", pod)
    assert (change.component, change.nodes, change.effects) == ("driver", (), ("no driver restart",))
    assert [(field.path, field.old, field.new) for field in change.fields] == fields
    names = {"name": pod, "namespace": change.ref.namespace, "uid": f"uid-of-{pod}"}
    assert (change.manifest or {})["metadata"] == {**names, **patch}
    assert (change.manifest or {})["spec"] == {"nodeName": "t4-1"}


@pytest.mark.parametrize("key", [labels.APP, labels.DRIVER_GROUP, labels.DIGEST])
def test_labels_of_the_selector_and_the_digest_stay(key: str) -> None:
    """A pod with another digest was made from another template, and still is after a patch."""
    assert pod_changes_of(with_driver_pod(stack_with_pod_metadata(before={key: "x"}), labels={key: "other"})) == ()


def test_a_key_that_a_person_put_into_the_template_stays() -> None:
    """Such as the annotation of kubectl rollout restart: managedFields has no entry of this tool."""
    made = stack_with_pod_metadata()
    ref = ref_of(made.daemonset("driver", "t4-1"))
    made.members[ref]["spec"]["template"]["metadata"]["labels"]["tier"] = "a"
    assert pod_changes_of(with_driver_pod(made, labels={"tier": "a"})) == ()


def test_pods_of_another_installation_are_no_exception() -> None:
    """Some keep their driver for months. Those that end, and pods of operands that roll by themselves, are."""
    made = with_driver_pod(stack_with_pod_metadata(), labels={"team": None})
    made.put(outdated(made.pod("driver", "t4-1")))
    assert len(pod_changes_of(made)) == 1
    made.put(terminating(made.pod("driver", "t4-1")))
    assert pod_changes_of(made) == ()
    gfd = made.pod("gfd", "t4-1")
    made.put({**gfd, "metadata": {**gfd["metadata"], "annotations": {}}})
    assert pod_changes_of(made) == ()
