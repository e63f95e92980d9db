"""The next steps of a run, and their execution."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.specs import StartupTaintSpec
from gpu_provision.planning.states import LABELS_PENDING, ComponentNode, cluster_state, evaluate_states
from gpu_provision.planning.upgrades import DRIVER_KEPT
from gpu_provision.reconcile.evidence import Crashes
from gpu_provision.reconcile.steps import (
    SEEN_SECONDS,
    PatchNode,
    RemovePod,
    StartPod,
    Step,
    StepExecutor,
    TransitionNode,
    next_actions,
)
from gpu_provision.rollout.snapshot import StateTransition
from gpu_provision.rollout.states import UpgradeState
from tests.components.builders import fleet, inventory, specs
from tests.planning.builders import Stack, labelled, outdated, restarted, shown, terminating, validation_pod, with_node

LATER = "2026-11-21T08:00:00Z"


def steps(stack: Stack, *void: Manifest) -> list[Step]:
    """Return the next steps; ``void`` are pods whose vectorAdd runs again."""
    observed = replace(stack.observed, void_pod_uids=frozenset(pod["metadata"]["uid"] for pod in void))
    seen = cluster_state(stack.context, stack.desired, observed)
    return list(next_actions(seen, evaluate_states(seen)))


def forgotten(stack: Stack, node: str = "t4-1") -> Manifest:
    """The device plugin validation of a node, whose result is forgotten."""
    del stack.passed["device_plugin_validation", node]
    return next(item for item in stack.validations() if node in item["metadata"]["name"])


def test_nodes_are_labelled_after_node_feature_discovery() -> None:
    stack = Stack(facts=with_node(fleet(), "t4-2", labels={}))
    found = [step for step in steps(stack) if isinstance(step, PatchNode)]
    assert [step.ref.name for step in found] == ["h100-1", "t4-1"]
    assert found[0].uid == "uid-of-h100-1"
    assert (labels.GPU_PRESENT, "true") in found[0].labels


def test_labels_of_a_node_that_left_go_when_its_rollout_says_so() -> None:
    """And are not tried again once they are refused."""
    left = {labels.INVENTORY: "sandbox", labels.GPU_PRESENT: "true"}
    facts = labelled()
    node = next(node for node in facts.nodes if node.name == "cpu-1")
    stack = Stack(facts=with_node(facts, "cpu-1", labels={**node.labels, **left}))
    state = evaluate_states(stack.situation)["node_labels", "cpu-1"]
    assert steps(stack) == [], "whether pods of others use its GPU is not known"
    assert _steps_with(stack, replace(state, state=State.PROGRESSING, reason="pods to go: default/train")) == []
    (step,) = _steps_with(stack, replace(state, state=State.PROGRESSING, reason=LABELS_PENDING))
    assert isinstance(step, PatchNode)
    assert step.ref.name == "cpu-1"
    assert dict(step.labels) == dict.fromkeys(left)
    assert _steps_with(stack, replace(state, state=State.FAILED, reason="denied")) == []


def _steps_with(stack: Stack, state: NodeState) -> list[Step]:
    settled = evaluate_states(stack.situation) | {(state.component, state.node): state}
    return list(next_actions(stack.situation, settled))


def test_a_validation_is_started_once() -> None:
    """Its pod stays until the end of the run, when all go together."""
    stack = Stack()
    manifest = forgotten(stack)
    (start,) = steps(stack)
    assert isinstance(start, StartPod)
    assert start.manifest == manifest
    for phase in ("Pending", "Running", "Succeeded"):
        stack.put(validation_pod(manifest, phase))
        assert steps(stack) == []


def of_driver(stack: Stack, *void: Manifest) -> list[Step]:
    return [step for step in steps(stack, *void) if step.key[0] == "driver_validation"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_validation_that_began_before_the_driver_makes_room(phase: str) -> None:
    """Such as before a driver pod that was deleted since. Both have one name, so one has to be gone first."""
    stack = Stack()
    old = validation_pod(forgotten(stack), phase)
    stack.put(old)
    stack.put(restarted(stack.pod("driver", "t4-1"), LATER))
    stack.put(shown(stack.pod("validator", "t4-1"), began="2026-11-21T08:30:00Z"))
    (step,) = steps(stack)
    assert isinstance(step, RemovePod)
    assert step.ref.name == old["metadata"]["name"]
    stack.put(terminating(old))
    assert steps(stack) == []
    stack.remove(old)
    (step,) = steps(stack)
    assert isinstance(step, StartPod)


def test_the_validator_pod_is_deleted_for_another_vector_add() -> None:
    """Its DaemonSet makes another pod; one that is replaced anyway, or has yet to run, is left alone."""
    stack = Stack()
    pod = stack.pod("validator", "t4-1")
    stack.put(restarted(stack.pod("driver", "t4-1"), LATER))
    (step,) = of_driver(stack)
    assert (type(step), step.ref) == (RemovePod, ref_of(pod))
    for other in (terminating(pod), outdated(pod), {**pod, "status": {"phase": "Pending"}}):
        stack.put(other)
        assert of_driver(stack) == []
    stack.remove(pod)
    assert of_driver(stack) == []


def test_a_postponed_validation_leaves_the_earlier_pod() -> None:
    """The driver keeps its content, so none runs in its place, and the plan has no change."""
    stack = Stack()
    pod = validation_pod(forgotten(stack), "Succeeded")
    stack.put(pod)
    stack.put(restarted(stack.pod("toolkit", "t4-1"), LATER))
    kept = NodeState(component="driver", node="t4-1", state=State.READY, reason=f"{DRIVER_KEPT}: auto_upgrade is off")
    settled = evaluate_states(stack.situation) | {("driver", "t4-1"): kept}
    assert list(next_actions(stack.situation, settled)) == []


def test_a_failed_validation_pod_goes_in_the_next_run() -> None:
    """So that its log can be read until the next run."""
    stack = Stack()
    pod = validation_pod(forgotten(stack), "Failed")
    stack.put(pod)
    assert steps(stack) == []
    (step,) = steps(stack, pod)
    assert isinstance(step, RemovePod)
    stack.put(terminating(pod))
    assert steps(stack, pod) == []


@pytest.mark.parametrize("on_record", [False, True])
def test_a_rejected_validation_pod_is_removed_and_repeated(*, on_record: bool) -> None:
    """A device plugin that restarts in the wrong moment is no failed vectorAdd, nor a reason to trust an old one."""
    stack = Stack()
    known = dict(stack.passed)
    pod = validation_pod(forgotten(stack), "Failed", reason="UnexpectedAdmissionError", message="no devices")
    if on_record:
        stack.passed = known
        stack.put(restarted(stack.pod("device_plugin", "t4-1"), LATER))
    stack.put(pod)
    (step,) = steps(stack)
    assert isinstance(step, RemovePod)
    stack.remove(pod)
    (step,) = steps(stack)
    assert isinstance(step, StartPod)


@pytest.mark.parametrize("outdated_ones", [[], ["driver"], ["gfd"]], ids=["as declared", "drivers", "daemons"])
def test_no_step_replaces_pods_of_a_controller_or_a_rollout(outdated_ones: list[str]) -> None:
    stack = Stack()
    for component in outdated_ones:
        stack.put(outdated(stack.pod(component, "t4-1")))
    assert steps(stack) == []


_TAINTS = ({"key": "team", "effect": "NoSchedule"}, {"key": labels.NOT_VALIDATED, "effect": "NoSchedule"})


def asking(*, enabled: bool = True) -> Inventory:
    return inventory(specs=specs(startup_taint=StartupTaintSpec(enabled=enabled)))


def tainted(stack: Stack, node: str = "t4-1", **fields: Any) -> ClusterFacts:
    """The facts of a stack with a node that still has the startup taint, beside another."""
    return with_node(stack.context.facts, node, taints=_TAINTS, revision="7", **fields)


def test_a_validated_node_loses_its_taint_with_its_label() -> None:
    """With the observed resourceVersion, so that no other taint is lost."""
    chosen = asking()
    stack = Stack(chosen, labelled(chosen=chosen))
    written = [step for step in steps(Stack(chosen, tainted(stack))) if isinstance(step, PatchNode)]
    assert [step.key for step in written] == [("startup_taint", name) for name in ("h100-1", "t4-1", "t4-2")]
    (content,) = written[1].labels
    assert written[1].patch() == {
        "metadata": {"uid": "uid-of-t4-1", "labels": dict([content]), "resourceVersion": "7"},
        "spec": {"taints": [_TAINTS[0]]},
    }
    assert written[2].patch() == {"metadata": {"uid": "uid-of-t4-2", "labels": dict([content])}}


def test_a_node_that_is_not_validated_keeps_its_taint() -> None:
    chosen = asking()
    stack = Stack(chosen, tainted(Stack(chosen, labelled(chosen=chosen))))
    forgotten(stack)
    assert [step.ref.name for step in steps(stack) if isinstance(step, PatchNode)] == ["h100-1", "t4-2"]


def test_a_disabled_startup_taint_is_removed_at_once() -> None:
    """Its worker does not tolerate the taint then, so it never would."""
    chosen = asking(enabled=False)
    stack = Stack(chosen, tainted(Stack(chosen), labels={}))
    (step,) = (step for step in steps(stack) if isinstance(step, PatchNode))
    assert (step.key, step.labels) == (("node_labels", "t4-1"), ())
    assert step.patch()["spec"] == {"taints": [_TAINTS[0]]}


_KEY = ("driver_validation", "t4-1")
_STEP = RemovePod(_KEY, ObjectRef("v1", "Pod", "operands", "cuda"), "uid")


def finding(evidence: str) -> Finding:
    return Finding(code="GP303", what="no", where="here", evidence=evidence, fix="do")


def executor(
    delete: Callable[..., None],
    rejected: dict[ComponentNode, str] | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> StepExecutor:
    cluster: Any = SimpleNamespace(delete=delete)
    rollout: Any = None
    reasons = {} if rejected is None else rejected
    return StepExecutor(cluster, rollout, Crashes(cluster), rejected=reasons, on_end=on_end, on_written=lambda _: None)


NODE = ObjectRef("v1", "Node", "", "t4-1")
MOVE = StateTransition(node="t4-1", revision="7", state=UpgradeState.CORDON_REQUIRED)


@pytest.mark.parametrize(
    ("step", "is_there"),
    [
        (StartPod(_KEY, _STEP.ref, {"kind": "Pod"}), False),
        (StartPod(_KEY, _STEP.ref, {"kind": "Pod"}), True),
        (TransitionNode(("driver", "t4-1"), NODE, MOVE), False),
        (PatchNode(("node_labels", "t4-1"), NODE, "uid", (("nvidia.com/gpu.present", "true"),)), False),
    ],
    ids=["a pod", "a pod that exists", "a node that was moved", "a node that was labelled"],
)
def test_a_written_object_is_noted_for_the_next_iteration(step: Step, *, is_there: bool) -> None:
    """Its watch may lag by seconds, in which it would be written again; or no look may come any more."""
    shown, item = list[Any](), {"metadata": {"name": "it", "uid": "1"}}

    def create(_: object) -> Any:
        if is_there:
            raise AlreadyExistsError(finding("exists"))
        return item

    cluster: Any = SimpleNamespace(create=create, get=lambda _: item, merge_patch=lambda *_: item)
    rest: Any = None
    made = StepExecutor(cluster, rest, rest, rejected={}, on_end=lambda: None, on_written=shown.append)
    with made:
        made.start(step, 0.0)
    assert shown == [item]
    assert bool(made.written) is not is_there


def test_a_step_is_not_repeated_before_its_effect_can_be_seen() -> None:
    asked, ended = list[str](), threading.Semaphore(0)
    made = executor(lambda *_, **__: asked.append("once more"), on_end=ended.release)
    with made:
        made.start(_STEP, 0.0)
        assert ended.acquire(timeout=120)
        made.collect()
        made.start(_STEP, SEEN_SECONDS / 2)
        assert not made.is_busy
        made.start(_STEP, SEEN_SECONDS)
    assert asked == ["once more"] * 2


@pytest.mark.parametrize(
    ("error", "reasons"),
    [
        (NotFoundError(finding("gone")), {}),
        (ConflictError(finding("gone")), {}),
        (InvalidError(finding("quota exceeded")), {_KEY: f"{_STEP.ref}: quota exceeded"}),
        (ForbiddenError(finding("forbidden")), None),
    ],
    ids=["another client was faster", "it has changed", "rejected for good", "anything else ends the run"],
)
def test_a_step_that_is_answered_with_an_error(error: Exception, reasons: dict[ComponentNode, str] | None) -> None:
    rejected: dict[ComponentNode, str] = {}

    def fail(*_: object, **__: object) -> None:
        raise error

    made = executor(fail, rejected)
    with made:
        made.start(_STEP, 0.0)
    with contextlib.nullcontext() if reasons is not None else pytest.raises(ForbiddenError):
        made.collect()
    assert rejected == (reasons or {})
    assert not made.written
