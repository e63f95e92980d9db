"""The start of runs, and the delay after failures and repeated edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.operator import schedule
from gpu_provision.operator.schedule import Backoff, OverlapChecker, ReconcileRequest, ReconcileScheduler
from gpu_provision.operator.stack import is_released
from gpu_provision.operator.status import Reason
from tests.data_file import document
from tests.operator.conftest import a_stack

SCRIPTS: dict[str, list[dict[str, Any]]] = document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("steps", SCRIPTS.values(), ids=SCRIPTS)
def test_scheduler(steps: list[dict[str, Any]]) -> None:
    scheduler = ReconcileScheduler()
    for step in steps:
        now, edited = step["at"], {*step.get("edited", ())}
        if step.keys() & {"look", "edited"}:
            scheduler.observe({*step.get("look", ()), *edited}, now, edited=edited)
        if "start" in step:
            scheduler.on_start(now)
        if "finish" in step:
            scheduler.on_finish({*step["finish"]}, now, succeeded=step.get("well", False))
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
    assert backoff.seconds_left(100.0) == 0.0
    for seconds in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0):
        backoff.record_failure(100.0)
        assert backoff.seconds_left(100.0) == seconds
    assert (backoff.seconds_left(699.0), backoff.seconds_left(701.0)) == (1.0, 0.0)
    backoff.reset()
    assert backoff.seconds_left(100.0) == 0.0
    backoff.record_failure(100.0)
    assert backoff.seconds_left(100.0) == 5.0


def request(**metadata: Any) -> ReconcileRequest:
    return ReconcileRequest({"metadata": {"name": "prod", "uid": "u", "generation": 1, **metadata}, "spec": {}})


GOING = {"deletionTimestamp": "2026-11-22T09:00:00Z"}
KEEP = {"annotations": {"gpu-provision.io/on-delete": "keep"}}


def test_annotation_to_keep_counts_while_a_removal_waits() -> None:
    """Without a deletion it ends no run."""
    assert not is_released(request(annotations={"gpu-provision.io/on-delete": "remove"}).stack)
    assert request().is_equivalent(request(**KEEP))
    assert not request(**GOING).is_equivalent(request(**GOING, **KEEP))


OVERLAPS: dict[str, dict[str, Any]] = document(Path(__file__).with_name("test_schedule_overlaps.yaml").read_text())


def claiming(name: str, nodes: list[str], *, since: int = 1, namespace: str = "", **metadata: Any) -> dict[str, Any]:
    listed = [{"name": node, "pool": "gpu"} for node in nodes]
    known = {"uid": name, "generation": 1, "creationTimestamp": f"2026-11-22T09:00:0{since}Z", **metadata}
    made = a_stack(name, cluster={"namespace": namespace or f"home-of-{name}"}, nodes=listed)
    return {**made, "metadata": {"name": name, **known}}


@pytest.mark.parametrize("case", OVERLAPS.values(), ids=OVERLAPS)
def test_older_stack_keeps_what_both_want(case: dict[str, Any]) -> None:
    found = OverlapChecker().find_overlaps([claiming(**each) for each in case["stacks"]], [])
    assert found.keys() == ({"b"} if "problem" in case else set())
    for each in found.values():
        assert (each.reason, each.message.partition(": delete")[0]) == (Reason.OVERLAP, case["problem"])


def test_inventory_is_read_once_and_errors_are_left_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader compares stacks at every event, and loading a large one takes a second."""
    read: list[str] = []

    def counted(stack: dict[str, Any]) -> Any:
        read.append(stack["metadata"]["name"])
        return {}["not thought of"] if read[-1] == "broken" else inventory_of(stack)

    inventory_of = schedule.inventory_of
    monkeypatch.setattr(schedule, "inventory_of", counted)
    checker, a, b = OverlapChecker(), claiming("a", ["n1"]), claiming("b", ["n1", "n2"], since=2)
    for _ in range(3):
        assert checker.find_overlaps([a, b], []).keys() == {"b"}
    assert read == ["a", "b"]
    checker.find_overlaps([a, claiming("b", ["n2"], since=2, generation=2)], [])
    assert read == ["a", "b", "b"]
    assert checker.find_overlaps([claiming("broken", ["n1"], since=0), a, b], []).keys() == {"b"}
