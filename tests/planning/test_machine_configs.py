"""How far the Machine Config Operator is with the stack's MachineConfigs; see test_machine_configs.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import machine_config
from gpu_provision.components.labels import GPU_PRESENT
from gpu_provision.components.machine_config import ROLE, identity_of
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.codes import PART_ONLY
from gpu_provision.model.inventory import RunSelection
from gpu_provision.model.openshift import (
    CONFIG_REASON,
    CONFIG_STATE,
    CURRENT_CONFIG,
    DESIRED_CONFIG,
    MachinePool,
    OpenShiftFacts,
    RenderedConfig,
)
from gpu_provision.model.plan import Action
from gpu_provision.planning.prepare import inventory_findings, prepare
from gpu_provision.planning.states import evaluate_states
from gpu_provision.reconcile.desired_drivers import AWAITS_CONFIG, desired_drivers
from gpu_provision.reconcile.steps import PatchNode, next_actions
from tests import data_file
from tests.components.builders import fleet, inventory, inventory_with
from tests.planning.builders import Stack, labelled, with_node

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
GPU, ALL_ROLES = {"matchLabels": {ROLE: "gpu"}}, {"matchExpressions": [{"key": ROLE, "operator": "Exists"}]}
ANNOTATIONS = (CURRENT_CONFIG, DESIRED_CONFIG, CONFIG_STATE, CONFIG_REASON)


def pool(name: str = "gpu", nodes: tuple[str, ...] = ("t4-1", "t4-2"), **fields: Any) -> MachinePool:
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return MachinePool(**{"name": name, "nodes": nodes, "config_selector": GPU} | tuples)


def facts_of(case: Mapping[str, Any], facts: ClusterFacts | None = None) -> ClusterFacts:
    """Return facts in which rendered MachineConfigs hold the present content of the stack, or none of it."""
    others = [pool("infra", (), config_selector=ALL_ROLES, **case["other"])] if "other" in case else []
    openshift = OpenShiftFacts(version="4.18.9", pools=(pool(**case["pool"]), *others))
    given = replace(facts or fleet(), openshift=openshift)
    wanted = frozenset(identity_of(each).digest for each in prepare(inventory(), given)[1][machine_config.NAME])
    rendered = dict.fromkeys(case.get("old", ()), RenderedConfig())
    rendered |= dict.fromkeys(case.get("new", ()), RenderedConfig(wanted))
    given = replace(given, openshift=replace(openshift, rendered=rendered))
    for node, text in case["nodes"].items():
        notes = dict(zip(ANNOTATIONS, text.split(" ", 3), strict=False))
        given = with_node(given, node, annotations=notes)
    return given


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_state_of_nodes_and_pools(case: dict[str, Any]) -> None:
    states = evaluate_states(Stack(facts=facts_of(case)).situation)
    found = {node: states[machine_config.NAME, node] for node in case["states"]}
    assert {node: f"{each.state.value} {each.reason}" for node, each in found.items()} == case["states"]
    assert (machine_config.NAME, "h100-1") not in states, "no MachineConfig is for its pool"


BEFORE = {"pool": {"rendered": "r-1", "wanted": "r-1"}, "old": ["r-1"], "nodes": {"t4-1": "r-1 r-1 Done"}}
ROLLING = {
    "pool": {"rendered": "r-1", "wanted": "r-2"},
    "old": ["r-1"],
    "new": ["r-2"],
    "nodes": {"t4-1": "r-2 r-2 Done", "t4-2": "r-1 r-2 Working"},
}


def test_labels_follow_the_reboot_of_their_node() -> None:
    """With its labels a node gets a driver pod, which the reboot would end in the middle of a build."""
    stack = Stack(facts=facts_of(ROLLING))
    steps = next_actions(stack.situation, evaluate_states(stack.situation))
    patches = [step for step in steps if isinstance(step, PatchNode)]
    assert {each.ref.name for each in patches if GPU_PRESENT in dict(each.labels)} == {"t4-1", "h100-1"}


def test_a_rollout_leaves_out_nodes_before_their_reboot() -> None:
    stack = Stack(facts=facts_of(ROLLING, labelled()))
    declared = desired_drivers(stack.situation, rebooting={"t4-2"})
    assert {name: each.left_out for name, each in declared.items() if each.left_out} == {"t4-2": AWAITS_CONFIG}


def test_a_plan_names_the_reboots_and_then_the_wait() -> None:
    stack = Stack(facts=facts_of(BEFORE))
    created = [each for each in stack.plan.changes if each.ref.kind == "MachineConfig"]
    assert [each.action for each in created] == [Action.WAIT]
    del stack.members[created[0].ref]
    [change] = (each for each in stack.plan.changes if each.component == machine_config.NAME)
    assert (change.action, change.effects) == (
        Action.CREATE,
        ("reboots 2 nodes of MachineConfigPool gpu, 1 at a time",),
    )
    assert stack.plan.changes.index(change) == min(
        place for place, each in enumerate(stack.plan.changes) if each.component != "prerequisites"
    )


def test_an_update_names_the_reboots_unless_only_labels_change() -> None:
    stack = Stack(facts=facts_of(BEFORE))
    [ref] = (ref for ref in stack.members if ref.kind == "MachineConfig")
    edited = {**stack.members[ref], "spec": {"kernelArguments": ["quiet"], "config": {}}}
    stack.members[ref] = edited
    [change] = (each for each in stack.plan.changes if each.ref == ref and each.action is Action.UPDATE)
    assert change.effects == ("reboots 2 nodes of MachineConfigPool gpu, 1 at a time",)


@pytest.mark.parametrize(
    "changes",
    [{"openshift": {"machine_config": False}}, {"cluster": {"platform": "kubernetes"}}],
    ids=["off", "declared as another platform"],
)
def test_a_machine_config_that_goes_names_the_reboots(changes: dict[str, Any]) -> None:
    before = Stack(facts=facts_of(BEFORE))
    [ref] = (ref for ref in before.members if ref.kind == "MachineConfig")
    stack = Stack(facts=facts_of(BEFORE), chosen=inventory_with(changes))
    stack.members[ref] = before.members[ref]
    [change] = (each for each in stack.plan.changes if each.ref == ref)
    assert (change.action, change.effects) == (
        Action.DELETE,
        ("reboots 2 nodes of MachineConfigPool gpu, 1 at a time",),
    )


@pytest.mark.parametrize(("pools", "also"), [(("t4-1", "t4-2"), "also t4-2"), (("t4-1",), "")])
def test_a_limited_run_says_which_other_nodes_reboot(pools: tuple[str, ...], also: str) -> None:
    facts = replace(fleet(), openshift=OpenShiftFacts(version="4.18.9", pools=(pool(nodes=pools),)))
    known = prepare(inventory(), facts, RunSelection(nodes=frozenset({"t4-1"})))[0]
    (finding,) = (each for each in inventory_findings(known) if each.code == PART_ONLY)
    assert finding.consequence.partition("a MachineConfig reboots all nodes of its pool, ")[2] == also


def test_a_reason_of_several_lines_is_one() -> None:
    """Else one of them could pass for a line of the finding."""
    nodes = {"t4-1": "r-1 r-2 Degraded disk full\n  fix: reinstall"}
    states = evaluate_states(Stack(facts=facts_of({**BEFORE, "nodes": nodes})).situation)
    assert states[machine_config.NAME, "t4-1"].reason.endswith("configure the node: disk full fix: reinstall")


def any_gpus(facts: ClusterFacts) -> Stack:
    """A stack whose nodes are those of the pool gpu that turn out to have a GPU."""
    return Stack(chosen=inventory_with({"pools": {"any": {"gpu": {}}}, "nodes": []}), facts=facts)


def unlabelled(facts: ClusterFacts) -> ClusterFacts:
    return replace(facts, nodes=tuple(replace(node, labels={}) for node in facts.nodes))


def test_a_plan_says_which_pools_discovery_may_reboot() -> None:
    """Before Node Feature Discovery has run, it is unknown which nodes have a GPU."""
    stack = any_gpus(unlabelled(facts_of(BEFORE)))
    for ref in [ref for ref in stack.members if ref.kind == "DaemonSet"]:
        del stack.members[ref]
    [change] = (each for each in stack.plan.changes if each.ref.kind == "MachineConfig")
    assert (change.action, change.certain, change.ref.name) == (Action.CREATE, False, "99-gpu-gpu-provision")
    assert change.effects == ("reboots 2 nodes of MachineConfigPool gpu, 1 at a time",)
    assert change.manifest is None, "a run writes it once it is known"


def test_nodes_that_discovery_never_reaches_make_no_change() -> None:
    """Such as nodes with a taint of their own: else the plan would never be empty."""
    stack = any_gpus(unlabelled(facts_of(BEFORE)))
    stack.pods.clear()
    for ref, item in stack.members.items():
        if ref.kind == "DaemonSet":
            stack.members[ref] = {**item, "status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}
    assert not [each for each in stack.plan.changes if each.ref.kind == "MachineConfig"]
