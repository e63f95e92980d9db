"""The start of a stack's runs, and its status meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.operator import reconciler
from gpu_provision.operator.reconciler import StackReconciler
from gpu_provision.operator.schedule import SETTLE_SECONDS, ReconcileRequest
from gpu_provision.operator.status import StackObservation
from gpu_provision.reconcile.observer import Observation

EDITED = "DaemonSet gpu-operator-resources/nvidia-dcgm-exporter"


class Worker(SimpleNamespace):
    """A stack with a pending change: its cache, observer, reporter and clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(now=0.0, silence=0.0, runs=0, statuses=[], notes=[], waits=[])
        nothing = frozenset[str]()
        seen = Observation(cast("Any", None), {}, objects=frozenset({EDITED}), edited=nothing, steps=nothing)
        self.metrics = SimpleNamespace(record_needs=lambda *_: None)
        self.observe, self.next_deadline = lambda _: seen, lambda _: float("inf")
        clock = SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: 0.0, sleep=lambda _: None)
        monkeypatch.setattr(reconciler, "time", clock)
        monkeypatch.setattr(StackReconciler, "_start_run", self.begin)
        request = ReconcileRequest({"metadata": {"name": "main", "generation": 1}, "spec": {}})
        this = cast("Any", self)
        self.reconciler = StackReconciler(request, this, this, self.notes.append, is_superseded=lambda: False)

    def begin(self, *_: object) -> None:
        self.runs += 1

    def report(self, observation: StackObservation, _now: float) -> float:
        self.statuses.append(observation)
        return float("inf")

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconciler._tick(cast("Any", self), cast("Any", self))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_no_run_begins_from_copies_that_may_be_old(worker: Worker) -> None:
    """A disconnected watch is logged once, and checked every second."""
    worker.silence = 3.0
    worker.turn(4)
    assert worker.runs == 0
    assert worker.waits[1:] == [1.0, 1.0, 1.0]
    assert [(note.reason, note.is_warning) for note in worker.notes] == [("Waiting", True)]
    assert "a watch has ended" in worker.statuses[-1].wait_reason
    assert worker.statuses[-1].is_working
    worker.silence = 0.0
    worker.turn()
    assert worker.runs == 1
    assert worker.statuses[-1].wait_reason == ""


def test_a_status_is_written_after_the_first_write_of_a_run(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing a fleet's status takes as long as repairing an object."""

    def begin(*_: object) -> None:
        worker.reconciler._session = cast("Any", SimpleNamespace(is_running=True, is_following=False))

    monkeypatch.setattr(StackReconciler, "_start_run", begin)
    for count in (1, 1, 2):  # before the run, as it begins, and afterwards
        worker.turn()
        assert len(worker.statuses) == count
    assert worker.waits[1] == SETTLE_SECONDS


def test_unknown_version_on_record_holds_to_nothing(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event has the reason."""

    def unknown(*_: object) -> None:
        raise RunFailedError(Finding(code="GP338", what="not known"))

    monkeypatch.setattr(reconciler, "active_inventory", unknown)
    monkeypatch.setattr(reconciler, "Session", lambda _: SimpleNamespace(cluster=None))
    assert worker.reconciler._active_inventory() is None
    assert [(note.is_warning, note.message) for note in worker.notes] == [(True, "GP338: not known")]
