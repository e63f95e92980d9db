"""How the steps of a run are started, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, Refused, Rejected
from gpu_provision.planning.states import Key
from gpu_provision.reconcile.actions import PatchNode, RemovePod, StartPod, TransitionNode
from gpu_provision.reconcile.steps import SEEN_SECONDS, Crashes, StepExecutor
from gpu_provision.rollout.actions import StateTransition
from gpu_provision.rollout.states import UpgradeState

_KEY = ("driver_validation", "t4-1")
_STEP = RemovePod(_KEY, ObjectRef("v1", "Pod", "operands", "cuda"), "uid")


def finding(evidence: str) -> Finding:
    return Finding(code="GP303", what="no", where="here", evidence=evidence, fix="do")


def steps(
    delete: Callable[..., None], rejected: dict[Key, str] | None = None, on_end: Callable[[], None] = lambda: None
) -> StepExecutor:
    """Return steps on a cluster that deletes as told, where nothing is recorded."""
    cluster: Any = SimpleNamespace(delete=delete)
    rollout: Any = None
    told = {} if rejected is None else rejected
    return StepExecutor(cluster, rollout, Crashes(cluster), rejected=told, on_end=on_end, on_written=lambda _: None)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_pod_that_exists_is_shown_to_the_next_look(*, is_there: bool) -> None:
    """Its watch may lag by seconds, in which the pod would be created again and again."""
    shown, pod = list[Any](), {"metadata": {"name": "cuda", "uid": "1"}}

    def create(_: object) -> Any:
        if is_there:
            raise AlreadyExistsError(finding("exists"))
        return pod

    cluster: Any = SimpleNamespace(create=create, get=lambda _: pod)
    rest: Any = None
    made = StepExecutor(cluster, rest, rest, rejected={}, on_end=lambda: None, on_written=shown.append)
    with made:
        made.start(StartPod(_KEY, _STEP.ref, {"kind": "Pod"}), 0.0)
    assert shown == [pod]
    assert bool(made.written) is not is_there


def test_a_node_that_was_moved_is_shown_to_the_next_look() -> None:
    """Its watch may lag, also where no look comes any more: what an interrupted run leaves is read off there."""
    shown, node = list[Any](), {"metadata": {"name": "t4-1", "resourceVersion": "8"}}
    rollout: Any = SimpleNamespace(move=lambda _: node)
    rest: Any = None
    made = StepExecutor(rest, rollout, rest, rejected={}, on_end=lambda: None, on_written=shown.append)
    move = StateTransition(node="t4-1", revision="7", to=UpgradeState.CORDON_REQUIRED)
    with made:
        made.start(TransitionNode(("driver", "t4-1"), ObjectRef("v1", "Node", "", "t4-1"), move), 0.0)
    assert shown == [node]


def test_a_node_that_was_labelled_is_shown_to_the_next_look() -> None:
    """Its watch may lag by seconds, in which the node would be patched again."""
    shown, node = list[Any](), {"metadata": {"name": "t4-1", "resourceVersion": "8"}}
    cluster: Any = SimpleNamespace(merge=lambda *_: node)
    rest: Any = None
    made = StepExecutor(cluster, rest, rest, rejected={}, on_end=lambda: None, on_written=shown.append)
    labels = (("nvidia.com/gpu.present", "true"),)
    with made:
        made.start(PatchNode(("node_labels", "t4-1"), ObjectRef("v1", "Node", "", "t4-1"), "uid", labels), 0.0)
    assert shown == [node]


def test_a_step_is_not_repeated_before_its_effect_can_be_seen() -> None:
    asked, ended = list[str](), threading.Semaphore(0)
    made = steps(lambda *_, **__: asked.append("once more"), on_end=ended.release)
    with made:
        made.start(_STEP, 0.0)
        assert ended.acquire(timeout=120)
        made.collect()
        made.start(_STEP, SEEN_SECONDS / 2)
        assert not made.is_busy
        made.start(_STEP, SEEN_SECONDS)
    assert asked == ["once more"] * 2


def test_a_step_that_runs_is_not_started_twice() -> None:
    go, asked = threading.Event(), list[bool]()
    made = steps(lambda *_, **__: asked.append(go.wait(120)))
    with made:
        made.start(_STEP, 0.0)
        made.start(_STEP, 2 * SEEN_SECONDS)
        assert made.is_busy
        go.set()
    assert asked == [True]
    assert made.written == [_STEP]


@pytest.mark.parametrize("kind", [NotFoundError, ConflictError])
def test_another_client_that_was_faster_fails_nothing(kind: type[Exception]) -> None:
    rejected: dict[Key, str] = {}
    made = steps(raising(kind(finding("gone"))), rejected)
    with made:
        made.start(_STEP, 0.0)
    made.collect()
    assert not rejected
    assert not made.written


def test_a_rejection_is_reported_for_component_and_node() -> None:
    rejected: dict[Key, str] = {}
    made = steps(raising(Rejected(finding("quota exceeded"))), rejected)
    with made:
        made.start(_STEP, 0.0)
    made.collect()
    assert rejected == {_KEY: f"{_STEP.ref}: quota exceeded"}


def test_any_other_failure_ends_the_run() -> None:
    made = steps(raising(Refused(finding("forbidden"))))
    with made:
        made.start(_STEP, 0.0)
    with pytest.raises(Refused):
        made.collect()


def raising(error: Exception) -> Callable[..., None]:
    """Return what raises an error however it is called."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail
