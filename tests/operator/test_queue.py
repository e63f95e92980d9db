"""When the worker of a stack begins a run, and how long it waits after failures and repeated edits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from gpu_provision.operator import queue
from gpu_provision.operator.queue import (
    EDIT_SECONDS,
    SETTLE_SECONDS,
    Backoff,
    EditConflictBackoff,
    OverlapChecker,
    ReconcileRequest,
    ReconcileScheduler,
)
from gpu_provision.operator.stack import FINALIZER, HOME, is_released, stack_of
from gpu_provision.operator.status import Reason

LATER = 0.5
NAME = EDIT = "DaemonSet a/b"
NEVER = float("inf")
Step = Callable[[ReconcileScheduler], None]


def look(now: float, *needs: str, edited: Collection[str] = ()) -> Step:
    return lambda scheduler: scheduler.look({*needs, *edited}, now, edited={*edited})


def start(now: float) -> Step:
    return lambda scheduler: scheduler.on_start(now)


def finish(now: float, *needs: str, well: bool = False) -> Step:
    return lambda scheduler: scheduler.on_finish({*needs}, now, is_well=well)


def preempt(scheduler: ReconcileScheduler) -> None:
    scheduler.on_preempt()


def due(now: float, *, expected: bool = True) -> Step:
    def check(scheduler: ReconcileScheduler) -> None:
        assert scheduler.is_due(now) is expected, now

    return check


def wait(now: float, seconds: float, *, running: bool = False) -> Step:
    def check(scheduler: ReconcileScheduler) -> None:
        assert scheduler.wait(now, is_running=running) == seconds, now

    return check


def edits(now: float, *expected: str) -> Step:
    def check(scheduler: ReconcileScheduler) -> None:
        assert scheduler.new_edits(now) == {*expected}, now

    return check


REPEATED = [step for number in range(5) for step in (look(100.0 * number, edited=[EDIT]), look(100.0 * (number + 1)))]

SCRIPTS: dict[str, list[Step]] = {
    "without pending changes nothing begins": [look(0.0), due(100.0, expected=False), wait(100.0, NEVER)],
    "the echo of our own writes is no change": [
        *(look(0.0, "a"), due(0.0, expected=False), wait(0.0, SETTLE_SECONDS)),
        *(look(LATER / 2), look(LATER, "a"), due(LATER, expected=False)),
    ],
    "a change that lasts is due": [look(0.0, "a"), look(LATER, "a"), due(LATER)],
    "what a run has left undone is tried again later": [
        *(look(0.0, "a"), finish(1.0, "a"), look(2.0, "a"), due(2.0, expected=False)),
        *(wait(2.0, 4.0), look(6.0, "a"), due(6.0)),
    ],
    "a new change does not wait with a failed one": [
        *(finish(0.0, "a"), look(1.0, "a", "b"), look(1.0 + LATER, "a", "b"), due(1.0 + LATER))
    ],
    "what shows right after a run was left by it": [
        *(finish(0.0), look(SETTLE_SECONDS / 2, "a"), look(LATER * 3, "a"), due(LATER * 3, expected=False))
    ],
    "what was mended since is new when it comes back": [
        *(finish(0.0, "a"), look(1.0), look(2.0, "a"), look(2.0 + LATER, "a"), due(2.0 + LATER))
    ],
    "an edit needs no time to settle": [
        *(look(0.0, edited=[EDIT]), due(0.0, expected=False), wait(0.0, EDIT_SECONDS), due(EDIT_SECONDS))
    ],
    "a run learns once of each edit": [
        *(look(0.0, edited=[EDIT]), edits(0.0), edits(SETTLE_SECONDS, EDIT), edits(SETTLE_SECONDS * 2)),
        *(look(5.0), edits(5.0), look(6.0, edited=[EDIT]), edits(6.0 + LATER, EDIT)),
    ],
    "what is desired only now is no edit": [look(0.0, "new"), edits(10.0), wait(0.0, NEVER, running=True)],
    "a run ends when an edit has settled, and is not asked all the time": [
        *(look(0.0, edited=[EDIT]), wait(0.0, SETTLE_SECONDS, running=True)),
        wait(SETTLE_SECONDS, 1.0, running=True),
    ],
    "a run that was preempted is followed at once": [
        *(look(0.0, "a"), start(1.0), look(2.0, "a", edited=[EDIT])),
        *(look(2.0 + SETTLE_SECONDS, "a", edited=[EDIT]), preempt),
        *(due(2.0 + SETTLE_SECONDS), wait(2.0 + SETTLE_SECONDS, 0.0)),
    ],
    "an edit at the end of a failed run is not left undone by it": [
        *(look(0.0, "a"), start(0.0), look(9.9, "a", edited=[EDIT])),
        *(finish(10.0, "a", EDIT), look(10.1, "a", edited=[EDIT]), due(10.1)),
    ],
    "an edit at the end of a run is not left undone by it": [
        *(look(0.0, "a"), start(0.0), look(9.9, "a", edited=[EDIT])),
        *(finish(10.0, "a", EDIT, well=True), look(10.1, "a", edited=[EDIT]), due(10.1)),
    ],
    "an edit that a run could not undo waits with the rest": [
        *(look(0.0, edited=[EDIT]), start(1.0), finish(2.0, EDIT)),
        *(look(3.0, edited=[EDIT]), due(3.0, expected=False)),
    ],
    "what came up while a run succeeded does not wait": [
        *(look(0.0, "a"), start(1.0), look(4.0, "b"), finish(5.0, "b", well=True)),
        *(look(5.1, "b"), look(5.0 + LATER, "b"), due(5.0 + LATER)),
    ],
    "what a run leaves although it succeeded is no reason for the next": [
        *(look(0.0, "a"), start(1.0), finish(2.0, "a", well=True), look(3.0, "a"), due(3.0, expected=False))
    ],
    "an object that is edited repeatedly waits longer": [
        *(*REPEATED, look(500.0, edited=[EDIT]), wait(500.0, 4.0), wait(500.0, 4.0, running=True))
    ],
}


@pytest.mark.parametrize("steps", SCRIPTS.values(), ids=SCRIPTS)
def test_scheduler(steps: list[Step]) -> None:
    scheduler = ReconcileScheduler()
    for step in steps:
        step(scheduler)


def test_failures_double_the_pause_until_a_success() -> None:
    backoff, waits = Backoff(), []
    assert backoff.left(100.0) == 0.0
    for _ in range(9):
        backoff.failed(100.0)
        waits.append(backoff.left(100.0))
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    assert (backoff.left(699.0), backoff.left(701.0)) == (1.0, 0.0)
    backoff.succeeded()
    assert backoff.left(100.0) == 0.0
    backoff.failed(100.0)
    assert backoff.left(100.0) == 5.0


def after_repairs(number: int) -> EditConflictBackoff:
    conflicts = EditConflictBackoff()
    for _ in range(number):
        conflicts.look((), {NAME}, 0.0)
        conflicts.look({NAME}, (), 0.0)
    return conflicts


def test_repeated_edits_are_undone_ever_later() -> None:
    """The first ones at once: an administrator tries something. Two programs would go on for ever."""
    delays = [after_repairs(number).delay(NAME) for number in (0, 2, 3, 4, 5, 12)]
    assert delays == [0.0, 0.0, 1.0, 2.0, 4.0, 60.0]
    assert after_repairs(9).delay("DaemonSet a/c") == 0.0


def test_edits_are_forgotten_once_they_stop() -> None:
    conflicts = after_repairs(9)
    conflicts.look((), (), 60.0)
    assert conflicts.delay(NAME) == 60.0
    conflicts.look((), {NAME}, 119.0)
    conflicts.look((), {NAME}, 500.0)
    assert conflicts.delay(NAME) == 60.0, "an edit that lasts is not forgotten"
    conflicts.look((), (), 501.0)
    assert conflicts.delay(NAME) == 0.0


def test_edit_that_was_gone_before_it_was_undone_is_no_repair() -> None:
    conflicts = after_repairs(2)
    conflicts.look((), {NAME}, 0.0)
    conflicts.look((), (), 0.0)
    assert conflicts.delay(NAME) == 0.0


def request(**metadata: Any) -> ReconcileRequest:
    return ReconcileRequest({"metadata": {"name": "prod", "uid": "u", "generation": 1, **metadata}, "spec": {}})


GOING = {"deletionTimestamp": "2026-11-22T09:00:00Z"}
KEEP = {"annotations": {"gpu-provision.io/on-delete": "keep"}}


def test_deleted_stack_is_removed_unless_annotated() -> None:
    """By an annotation that kubectl can set."""
    assert not is_released(request(**GOING).stack)
    assert not is_released(request(annotations={"gpu-provision.io/on-delete": "remove"}).stack)
    assert is_released(request(**GOING, **KEEP).stack)


def test_the_annotation_counts_also_while_a_removal_waits() -> None:
    """And ends no run while the stack is not deleted."""
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
