"""What a run would change, and how it is described."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from gpu_provision.components.labels import HOST_DRIVER
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObservedState, ref_of
from gpu_provision.model.findings import Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Plan
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import inventory_findings, prepare
from tests.components.builders import fleet, inventory, with_spec
from tests.planning.builders import Stack, labelled, outdated, restarted, validation_pod, without_node


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
    """Labels, resources, pull policy: the running pods stay as they are, and the plan says so."""
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
    """To its own, and back to a container's; nothing is said of nodes that stay."""
    auto = with_spec("driver", prefer_host=True)
    assert _driver_words(replace(fleet(), host_drivers={"t4-1": "550.90.07"}), auto) == {
        "t4-1": ("host driver 550.90.07 on t4-1",)
    }
    own = replace(fleet().nodes[0], labels={**fleet().nodes[0].labels, HOST_DRIVER: "550.90.07"})
    facts = replace(fleet(), nodes=(own,), host_drivers={"t4-1": ""})
    assert _driver_words(facts, auto) == {"t4-1": ("driver container on t4-1",)}


def _driver_words(facts: ClusterFacts, wanted: Inventory) -> dict[str, tuple[str, ...]]:
    context, desired = prepare(wanted, facts)
    changes = plan(context, desired, ObservedState(cluster="c", facts=facts)).of("node_labels")
    return {change.ref.name: change.effects for change in changes if change.effects}
