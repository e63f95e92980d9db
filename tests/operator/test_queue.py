"""When the worker of a stack begins a run, and how long it waits after failures and repeated edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.operator import queue
from gpu_provision.operator.queue import Backoff, OverlapChecker, ReconcileRequest, ReconcileScheduler
from gpu_provision.operator.stack import FINALIZER, HOME, is_released, stack_of
from gpu_provision.operator.status import Reason
from tests.data_file import document

SCRIPTS: dict[str, list[dict[str, Any]]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("steps", SCRIPTS.values(), ids=SCRIPTS)
def test_scheduler(steps: list[dict[str, Any]]) -> None:
    scheduler = ReconcileScheduler()
    for step in steps:
        now, edited = step["at"], {*step.get("edited", ())}
        if step.keys() & {"look", "edited"}:
            scheduler.look({*step.get("look", ()), *edited}, now, edited=edited)
        if "start" in step:
            scheduler.on_start(now)
        if "finish" in step:
            scheduler.on_finish({*step["finish"]}, now, is_well=step.get("well", False))
        if "preempt" in step:
            scheduler.on_preempt()
        if "new_edits" in step:
            assert scheduler.new_edits(now) == {*step["new_edits"]}, step
        if "due" in step:
            assert scheduler.is_due(now) is step["due"], step
        if "wait" in step:
            assert scheduler.wait(now, is_running=step.get("running", False)) == step["wait"], step


def test_failures_double_the_pause_until_a_success() -> None:
    backoff = Backoff()
    assert backoff.left(100.0) == 0.0
    for seconds in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0):
        backoff.failed(100.0)
        assert backoff.left(100.0) == seconds
    assert (backoff.left(699.0), backoff.left(701.0)) == (1.0, 0.0)
    backoff.succeeded()
    assert backoff.left(100.0) == 0.0
    backoff.failed(100.0)
    assert backoff.left(100.0) == 5.0


def request(**metadata: Any) -> ReconcileRequest:
    return ReconcileRequest({"metadata": {"name": "prod", "uid": "u", "generation": 1, **metadata}, "spec": {}})


GOING = {"deletionTimestamp": "2026-11-22T09:00:00Z"}
KEEP = {"annotations": {"gpu-provision.io/on-delete": "keep"}}


def test_annotation_to_keep_counts_while_a_removal_waits() -> None:
    """And ends no run while the stack is not deleted."""
    assert not is_released(request(annotations={"gpu-provision.io/on-delete": "remove"}).stack)
    assert request().is_equivalent(request(**KEEP))
    assert not request(**GOING).is_equivalent(request(**GOING, **KEEP))


def claiming(name: str, since: int, *nodes: str, namespace: str = "", **metadata: Any) -> dict[str, Any]:
    """Return a stack that wants nodes and a namespace, its own by default."""
    pools = {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"never": "there"}}}
    cluster = {"namespace": namespace or f"home-of-{name}"}
    listed = [{"name": node, "pool": "gpu"} for node in nodes]
    made = stack_of({"name": name, "cluster": cluster, "pools": pools, "nodes": listed})
    created = f"2026-11-22T09:00:0{since}Z"
    return {**made, "metadata": {"name": name, "uid": name, "generation": 1, "creationTimestamp": created, **metadata}}


A, B = claiming("a", 1, "n1"), claiming("b", 2, "n1", "n2")
IN_GPUS, MOVED = (
    claiming("a", 1, "n1", namespace="gpus"),
    claiming("a", 1, "n1", namespace="elsewhere", annotations={HOME: "gpus"}),
)
MANY = [f"n{number:04}" for number in range(5000)]
OWNS_NODE, OWNS_GPUS = "stack a owns nodes that b wants, too: n1", "stack a owns the namespace gpus, which b wants, too"


@pytest.mark.parametrize(
    ("stacks", "problem"),
    [
        ([A, claiming("b", 2, "n2")], ""),
        ([B, A], OWNS_NODE),
        ([claiming("b", 1, "n1"), A], OWNS_NODE),
        ([A, B, claiming("c", 3, "n2")], OWNS_NODE),
        ([IN_GPUS, claiming("b", 2, "n2", namespace="gpus")], OWNS_GPUS),
        ([MOVED, claiming("b", 2, "n2", namespace="gpus")], OWNS_GPUS),
        ([MOVED, claiming("b", 2, "n2", namespace="elsewhere")], ""),
        ([claiming("a", 1, "n1", finalizers=[FINALIZER], **GOING), B], OWNS_NODE),
        ([claiming("a", 1, "n1", **GOING), B], ""),
        ([claiming("a", 1, *MANY), claiming("b", 2, *MANY)], "stack a owns nodes that b wants, too: n0000, "),
    ],
    ids=[
        "side by side",
        "the older keeps",
        "of one second",
        "what gives way hinders no other",
        "a namespace has one stack, as operands have the same names",
        "a stack owns the namespace that it is in",
        "not the one that it declares",
        "a stack in removal still owns its nodes",
        "and nothing when it is gone",
        "many nodes",
    ],
)
def test_older_stack_keeps_what_both_want(stacks: list[dict[str, Any]], problem: str) -> None:
    found = OverlapChecker().look(stacks, [])
    assert found.keys() == ({"b"} if problem else set())
    for each in found.values():
        assert (each.reason, each.message.startswith(problem), len(each.message) < 300) == (Reason.OVERLAP, True, True)


def test_inventory_is_read_once_and_errors_are_left_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader compares at every event, and a large one takes a second."""
    read: list[str] = []

    def counted(stack: dict[str, Any]) -> Any:
        read.append(stack["metadata"]["name"])
        return {}["not thought of"] if read[-1] == "broken" else inventory_of(stack)

    inventory_of = queue.inventory_of
    monkeypatch.setattr(queue, "inventory_of", counted)
    checker = OverlapChecker()
    for _ in range(3):
        assert checker.look([A, B], []).keys() == {"b"}
    assert read == ["a", "b"]
    checker.look([A, claiming("b", 2, "n2", generation=2)], [])
    assert read == ["a", "b", "b"]
    assert checker.look([claiming("broken", 0, "n1"), A, B], []).keys() == {"b"}
