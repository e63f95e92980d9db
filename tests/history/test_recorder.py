"""A run on record: from its begin to its end, whatever the server says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_provision.components.labels import RECORD
from gpu_provision.history import recorder, store
from gpu_provision.history.recorder import RunRecorder, RunSpec, reason_of, run_spec
from gpu_provision.history.store import parse_history
from gpu_provision.kube.client import ApplyResult, KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObjectRef, ObservedState, ref_of
from gpu_provision.model.findings import Finding, InvalidError, ProvisionError, Severity, UnreachableError
from gpu_provision.model.history import Ending
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.output.history import report_of_record
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from tests.components.builders import inventory

FULL = Finding(code="GP305", what="the API server rejects it (413)", evidence="too large", fix="make room")


class _Server:
    def __init__(self) -> None:
        self.data: dict[str, str] | None = None
        self.labels: Mapping[str, str] = {}
        self.requests, self.retry_seconds = 0, 60.0
        self.answer: ProvisionError | None = None

    def merge_patch(self, _ref: ObjectRef, change: Mapping[str, Any]) -> Manifest:
        self._ask()
        if self.data is None:
            raise NotFoundError(FULL)
        kept = {**self.data, **change["data"]}
        self.data = {key: value for key, value in kept.items() if value is not None}
        return {"data": self.data}

    def apply(self, manifest: Manifest, *, manager: str) -> ApplyResult:
        assert manager.startswith("gpu-provision-history-")
        self._ask()
        self.labels, self.data = manifest["metadata"]["labels"], {**(self.data or {}), **manifest["data"]}
        return ApplyResult({"data": self.data}, created=True)

    def _ask(self) -> None:
        self.requests += 1
        if self.answer:
            raise self.answer

    @property
    def runs(self) -> list[tuple[int, str, str]]:
        found = parse_history(self.data or {}, "")
        return [(each.number, each.ending.value, each.reason) for each in found.records]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Server:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return _Server()


def _spec(*, kept: int = 3, is_new: bool = False) -> RunSpec:
    stack = inventory(kept_runs=kept)
    context, desired = prepare(stack, ClusterFacts())
    parent = ref_of(desired["prerequisites"][-1])
    observed = ObservedState(cluster="c", facts=ClusterFacts(), members={} if is_new else {parent: {}})
    return run_spec(stack, plan(context, desired, observed, ()), desired, observed.members)


def _recorder(server: _Server, *, said: list[str] | None = None, **spec: Any) -> RunRecorder:
    return RunRecorder(cast("KubeClient", server), _spec(**spec), say=(said if said is not None else []).append)


def _run(server: _Server, ending: Ending = Ending.SUCCEEDED, **options: Any) -> RunRecorder:
    with _recorder(server, **options) as run:
        run.end(ending, changed=1)
    return run


def _killed(server: _Server, **options: Any) -> None:
    _recorder(server, **options).__enter__()


def test_a_run_costs_two_requests_also_the_first(server: _Server) -> None:
    assert _run(server, is_new=True).record.number == 1
    assert server.requests == 2
    assert server.labels[RECORD] == "history"
    assert _run(server).record.number == 2
    assert server.requests == 4
    assert [run[:2] for run in server.runs] == [(1, "succeeded"), (2, "succeeded")]


def test_a_record_that_was_removed_is_created_again(server: _Server) -> None:
    _run(server)
    assert server.runs == [(1, "succeeded", "")]


def test_a_stack_that_was_thought_new_keeps_its_records(server: _Server) -> None:
    _run(server)
    _run(server, is_new=True)
    assert [number for number, *_ in server.runs] == [1, 2]


def test_a_killed_run_is_reported_once_and_keeps_its_number(server: _Server) -> None:
    _killed(server)
    said: list[str] = []
    _run(server, said=said)
    assert said
    assert said[0].startswith("resuming after run 1 (")
    assert server.runs == [(1, "interrupted", "it never ended"), (2, "succeeded", "")]
    said.clear()
    _run(server, said=said)
    assert said == []


def test_killed_runs_do_not_fill_the_object(server: _Server) -> None:
    for _ in range(9):
        _killed(server, kept=2)
    assert len(server.data or {}) <= 4
    _run(server, kept=2)
    assert [number for number, *_ in server.runs][-1] == 10


def test_an_error_is_the_reason_without_passwords(server: _Server) -> None:
    error = UnreachableError(Finding(code="GP301", what="proxy http://u:p@h does not answer"))
    with pytest.raises(UnreachableError), _recorder(server):
        raise error
    assert server.runs == [(1, "failed", "proxy http://(not shown)@h does not answer")]
    assert server.retry_seconds == 0.0, "the server was waited for already"


def test_an_internal_error_interrupts(server: _Server) -> None:
    """What was written before is on record."""
    run = RunRecorder(cast("KubeClient", server), _spec(), progress=lambda: RunResult(changed=5))
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    assert server.runs[0][1] == "interrupted"
    assert run.record.changed == 5


def test_a_record_that_the_server_does_not_take_fails_no_run(server: _Server) -> None:
    server.answer = InvalidError(FULL)
    run = _run(server)
    assert run.problem
    assert (run.problem.code, run.problem.evidence) == ("GP330", "too large")
    assert run.record.ending is Ending.SUCCEEDED


def test_a_lost_server_fails_a_run_only_at_its_start(server: _Server) -> None:
    with _recorder(server) as run:
        run.end(Ending.SUCCEEDED)
        server.answer = UnreachableError(FULL)
    assert run.problem
    with pytest.raises(UnreachableError), _recorder(server):
        pytest.fail("nothing may be written")


def test_a_run_that_changed_hosts_alone_is_on_record(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a way back from it; what keeps it from being recorded is a warning."""
    monkeypatch.setattr(recorder, "WriteLock", lambda *_, **__: contextlib.nullcontext())
    assert recorder.record_host_changes(cast("KubeClient", server), _spec(), 2, planned_at="") == (1, ())
    assert server.runs == [(1, "succeeded", "changed 2 hosts, and nothing else")]
    server.answer = UnreachableError(FULL)
    _, (problem,) = recorder.record_host_changes(cast("KubeClient", server), _spec(), 1, planned_at="")
    assert (problem.code, problem.severity) == ("GP330", Severity.WARNING)
    assert (store.find_local(_spec().inventory.name) or {})["reason"] == "changed 1 host, and nothing else"


def test_a_hosts_only_run_is_on_record_where_the_stack_is(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else here alone; it is no run to go back to, and the last one is that before it."""
    _run(server)
    monkeypatch.setattr(recorder, "WriteLock", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(recorder, "_cluster_with_stack", lambda _: cast("KubeClient", server))
    assert recorder.record_host_only_run(inventory(), 2, failure="a: no root") == (2, ())
    found = parse_history(server.data or {}, "")
    assert [each.only for each in found.records] == ["", "hosts"]
    assert found.last == found.records[0]
    assert server.runs[1] == (2, "failed", "changed 2 hosts, and left the cluster alone; a: no root")
    monkeypatch.setattr(recorder, "_cluster_with_stack", lambda _: None)
    asked = server.requests
    assert recorder.record_host_only_run(inventory(), 1) == (0, ())
    local = store.find_local(inventory().name)
    assert local
    assert (local["ending"], local["only"], local["number"], server.requests) == ("succeeded", "hosts", 0, asked)


def test_the_local_record_of_a_running_run_has_its_progress(server: _Server) -> None:
    """From its begin, and again after a while; the page of it says that it goes on."""
    reached = RunResult()
    run = RunRecorder(cast("KubeClient", server), _spec(), progress=lambda: reached)
    with run:
        first = store.find_local(inventory().name)
        assert first
        assert (first["ending"], len(first["changes"]) > 10, first["states"]) == ("running", True, [])
        reached = RunResult(states=(NodeState(component="driver", node="a", state=State.READY),))
        run.save_local(0.0)
        assert store.find_local(inventory().name) == first, "it was written a moment ago"
        run.save_local(time.monotonic() + 3600)
        now = store.find_local(inventory().name)
        assert now
        assert report_of_record(now).result.states == reached.states
        assert report_of_record(now).outcome is Ending.RUNNING
        assert report_of_record({**now, "holder": "bob@other pid 1"}).outcome is Ending.INTERRUPTED
        run.end(Ending.SUCCEEDED)
    assert report_of_record(store.find_local(inventory().name) or {}).outcome is Ending.SUCCEEDED


def test_a_reason_is_the_first_failure_and_how_many_there_are() -> None:
    def state(node: str, how: State) -> NodeState:
        return NodeState(component="gfd", node=node, state=how, reason="broken")

    failed = [state("a", State.READY), state("b", State.FAILED), state("c", State.BLOCKED), state("", State.FAILED)]
    assert reason_of(failed) == "gfd on b: broken (and 1 more)"
    assert reason_of(failed[3:]) == "gfd: broken"
    assert reason_of([state("a", State.READY), state("b", State.BLOCKED)]) == "gfd on b: broken", "nothing failed first"
    assert reason_of(failed[:1]) == ""
