from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.model.cluster import NodeFacts
from gpu_provision.model.codes import LOCKED, PLAN_STALE, ROLLED_BACK
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State
from gpu_provision.operator.crd import MAX_PROBLEMS
from gpu_provision.operator.status import (
    Reason,
    StackObservation,
    StackPhase,
    StackProblem,
    add_later_problem,
    evaluate_status,
    failed_components,
    problem_of,
    rollback_problem,
    status_of,
)
from gpu_provision.planning.states import ComponentNode, evaluate_states
from tests.planning.builders import GPU_NODES, Stack, labelled, with_node

NOW, LATER = "2026-11-22T09:00:00Z", "2026-11-22T10:00:00Z"


def status(stack: Stack, before: dict[str, Any] | None = None, now: str = NOW, **changes: Any) -> dict[str, Any]:
    seen = stack.situation
    known: dict[ComponentNode, NodeState] = evaluate_states(seen) | changes.pop("states", {})
    observation = StackObservation(generation=3, release="26.7.0", cluster_state=seen, states=known, **changes)
    return status_of(observation, before or {}, now)


def failed(node: str = "t4-1") -> dict[ComponentNode, NodeState]:
    return {("driver", node): NodeState(component="driver", node=node, state=State.FAILED, reason="it does not build")}


def without_nfd() -> Stack:
    facts = labelled()
    for name in GPU_NODES:
        facts = with_node(facts, name, labels={})
    return Stack(facts=facts)


def without_nodes() -> dict[str, Any]:
    seen = Stack().situation
    empty = replace(seen, context=replace(seen.context, targets=()))
    return status_of(StackObservation(generation=1, cluster_state=empty, states={}), {}, NOW)


OVERLAP = StackProblem(Reason.OVERLAP, "stack a owns t4-1")
IDLE, WORKING, WELL, SILENT = Reason.IDLE, Reason.PROGRESSING, Reason.AVAILABLE, Reason.NO_FEATURES
CONDITIONS: dict[str, tuple[dict[str, Any], str, tuple[Reason, ...]]] = {
    "as declared": (status(Stack()), "Ready", (Reason.READY, IDLE, WELL)),
    "in a run": (status(Stack(), is_working=True), "Progressing", (WORKING, WORKING, WELL)),
    "failed": (status(Stack(), states=failed()), "Degraded", (Reason.FAILED, IDLE, Reason.FAILED)),
    "blocked": (status(Stack(), problem=OVERLAP), "Degraded", (Reason.OVERLAP, IDLE, Reason.OVERLAP)),
    "no nodes": (without_nodes(), "Degraded", (Reason.NO_GPU_NODES, IDLE, Reason.NO_GPU_NODES)),
    "no labels": (status(without_nfd()), "Degraded", (SILENT, IDLE, SILENT)),
    "no labels yet": (status(without_nfd(), is_working=True), "Progressing", (WORKING, WORKING, WELL)),
}
PHASES = {"Ready": StackPhase.READY, "Progressing": StackPhase.WORKING, "Degraded": StackPhase.FAILED}


@pytest.mark.parametrize(("found", "holds", "reasons"), CONDITIONS.values(), ids=CONDITIONS)
def test_conditions(found: dict[str, Any], holds: str, reasons: tuple[Reason, ...]) -> None:
    """Exactly one condition is true, each has its reason, and a client reads the same."""
    assert [each["type"] for each in found["conditions"] if each["status"] == "True"] == [holds]
    assert tuple(each["reason"] for each in found["conditions"]) == reasons
    stack = {"metadata": {"generation": found["observedGeneration"]}, "status": found}
    assert evaluate_status(stack).phase is PHASES[holds]


def test_a_node_that_fails_is_named_with_its_component_and_cause() -> None:
    found = status(Stack(), states=failed())
    assert "driver on t4-1: it does not build" in found["conditions"][0]["message"]
    assert found["nodes"]["problems"][0]["name"] == "t4-1"
    assert found["nodes"]["summary"] == "2/3"


def test_a_condition_keeps_its_time_until_its_status_turns() -> None:
    first = status(Stack())
    same = status(Stack(), first, LATER)
    assert {each["lastTransitionTime"] for each in same["conditions"]} == {NOW}
    broken = status(Stack(), first, LATER, states=failed())
    times = {each["type"]: each["lastTransitionTime"] for each in broken["conditions"]}
    assert times == {"Ready": LATER, "Progressing": NOW, "Degraded": LATER}


def test_a_status_never_says_anything_in_an_empty_text() -> None:
    """Some builds of Kubernetes 1.20 treat an empty text as null, and refuse the status."""
    for found in (status(Stack()), status(Stack(), states=failed())):
        assert '""' not in json.dumps(found)
        assert all(each["message"] for each in found["conditions"])


def test_rollout_counts_while_it_lasts() -> None:
    facts = labelled()
    for name, state in (("t4-1", "pod-restart-required"), ("t4-2", "upgrade-done")):
        known = next(node.labels for node in facts.nodes if node.name == name)
        facts = with_node(facts, name, labels={**known, "nvidia.com/gpu-driver-upgrade-state": state})
    found = status(Stack(facts=facts))["rollout"]
    assert found == {"done": 1, "failed": 0, "waiting": 0, "underWay": 1, "summary": "1/2"}
    assert "summary" not in status(Stack())["rollout"]


@pytest.mark.parametrize(
    ("findings", "problem"),
    [
        ((), None),
        ((Finding(code="GP1", what="beware", severity=Severity.WARNING),), None),
        (
            (Finding(code="GP304", what="a conflict", where="ConfigMap a/b", evidence="kubectl"),),
            StackProblem(Reason.RUN_FAILED, "GP304 ConfigMap a/b: a conflict (kubectl)"),
        ),
        ((Finding(code=ROLLED_BACK, what="back"),), StackProblem(Reason.ROLLED_BACK, f"{ROLLED_BACK} back")),
        ((Finding(code=LOCKED, what="y"),), StackProblem(Reason.OTHER_RUN, f"{LOCKED} y")),
        ((Finding(code=PLAN_STALE, what="y"),), StackProblem(Reason.OTHER_RUN, f"{PLAN_STALE} y")),
    ],
)
def test_findings_come_to_one_sentence_of_errors(findings: tuple[Finding, ...], problem: StackProblem | None) -> None:
    assert problem_of(findings) == problem


def test_findings_are_listed_with_fixes_while_there_is_room() -> None:
    findings = [Finding(code="GP142", where=f"spec.nodes[{n}].pool", what="No.", fix="Mend it.") for n in range(500)]
    found = problem_of(findings, Reason.INVALID)
    assert found is not None
    assert found.message.startswith("GP142 spec.nodes[0].pool: No. Fix: Mend it; GP142 spec.nodes[1].pool: No. Fix")
    assert found.message.endswith(" and 480 more")
    long = problem_of([Finding(code="GP1", what="x" * 9000)])
    assert long is not None
    assert (len(long.message) <= 4096, long.message[-1]) == (True, "…")
    many = problem_of([Finding(code="GP1", what="x" * 200)] * 30)
    assert many
    assert many.message.endswith("xxx and 11 more"), "whole sentences, and the number of the others"
    assert len(many.message) <= 4096


def test_rollback_lasts_until_another_spec() -> None:
    """Also after a restart of the controller. Later failures do not accumulate."""
    back, failure = StackProblem(Reason.ROLLED_BACK, "GP337 back"), StackProblem(Reason.RUN_FAILED, "GP301 silence")
    both = add_later_problem(back, failure)
    assert both == StackProblem(Reason.ROLLED_BACK, "GP337 back; since then: GP301 silence")
    assert (add_later_problem(None, failure), add_later_problem(back, None)) == (failure, back)
    assert [rollback_problem(stack_of(problem=each)) for each in (back, both)] == [back, back]
    others = [stack_of(4, problem=back), stack_of(), {"metadata": {"generation": 3}}]
    assert [rollback_problem(each) for each in others] == [None] * 3


def test_a_status_names_so_many_nodes_and_counts_the_others() -> None:
    names = [f"n{number:04}" for number in range(MAX_PROBLEMS + 10)]
    seen = Stack().situation
    nodes = tuple(NodeFacts(name=name) for name in names)
    pool = seen.context.targets[0]
    context = replace(
        seen.context,
        facts=replace(seen.context.facts, nodes=nodes),
        targets=tuple(replace(pool, name=node.name, facts=node) for node in nodes),
    )
    broken = {key: state for name in names for key, state in failed(name).items()}
    found = status_of(
        StackObservation(generation=1, cluster_state=replace(seen, context=context), states=broken), {}, NOW
    )
    assert len(found["nodes"]["problems"]) == MAX_PROBLEMS
    assert found["nodes"]["summary"] == f"0/{len(names)}"


def stack_of(generation: int = 3, **observation: Any) -> dict[str, Any]:
    return {"metadata": {"name": "prod", "generation": generation}, "status": status(Stack(), **observation)}


def test_a_status_comes_to_a_verdict() -> None:
    """An active run may repair an earlier failure; an older generation is ignored."""
    trying, problem = stack_of(states=failed(), is_working=True), StackProblem(Reason.INVALID, "no such release")
    stacks = (trying, stack_of(generation=4), {"metadata": {"generation": 1}})
    assert [evaluate_status(each).phase for each in stacks] == [StackPhase.WORKING, *[StackPhase.NOT_OBSERVED] * 2]
    assert evaluate_status(stack_of(problem=problem)).summary == "InvalidSpec: no such release"


def test_nodes_that_failed_are_found_with_component_and_cause() -> None:
    """A waiting component has not failed."""
    waiting = NodeState(component="gfd", node="t4-2", state=State.PROGRESSING, reason="ContainerCreating")
    found = failed_components(stack_of(states={**failed("t4-1"), ("gfd", "t4-2"): waiting}))
    assert found == {("driver", "t4-1"): "it does not build"}
    gone = NodeState(component="nfd", node="", state=State.FAILED, reason="ImagePullBackOff")
    assert failed_components(stack_of(states={("nfd", ""): gone}))["nfd", ""] == "ImagePullBackOff"
