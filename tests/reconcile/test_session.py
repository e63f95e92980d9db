"""A run in a thread, Ctrl-C in a wait for it, and the causes of its failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.diagnostics.pods import Crash
from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import NodeFacts, ObjectRef
from gpu_provision.model.findings import Finding, LockedError, ProvisionError, RunFailedError, attached_findings
from gpu_provision.model.history import Record
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.planning.states import ClusterState
from gpu_provision.planning.upgrades import OUTDATED
from gpu_provision.reconcile.evidence import CrashLog, explain
from gpu_provision.reconcile.run import Outcome
from gpu_provision.reconcile.run_thread import RunThread, summary
from gpu_provision.reconcile.session import merge_evidence

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "gfd-x", "namespace": "operands", "uid": "1"},
    "spec": {"nodeName": "t4-1"},
    "status": {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "wait", "state": {"waiting": {"reason": "PodInitializing"}}}],
    },
}
MOUNT = {"reason": "FailedMount", "message": 'MountVolume.SetUp failed for volume "c" : configmap "c" not found'}
NO_SANDBOX = {"reason": "FailedCreatePodSandBox", "message": "failed to generate: open /etc/hosts: no such file"}


class FakeCluster:
    """Answers like an API server on which one pod is stuck."""

    def __init__(self, events: list[dict[str, Any]] | ProvisionError) -> None:
        self._events = events

    def events(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        assert item["metadata"]["name"] == POD["metadata"]["name"]
        if isinstance(self._events, ProvisionError):
            raise self._events
        return self._events

    def read_log(self, ref: ObjectRef, container: str, *, lines: int, previous: bool) -> tuple[str, ...]:
        del ref, container, lines, previous
        raise ProvisionError(Finding(code="GP305", what="the container has not started"))


def context(*nodes: NodeFacts) -> SimpleNamespace:
    """What the situation at the end of a run knows of its nodes."""
    targets = tuple(SimpleNamespace(name=node.name, facts=node) for node in nodes)
    facts, inventory = SimpleNamespace(nodes=nodes), SimpleNamespace(name="prod")
    return SimpleNamespace(targets=targets, facts=facts, inventory=inventory)


def outcome_of(*states: NodeState, seen: SimpleNamespace | None = None, **fields: Any) -> Outcome:
    found = seen or SimpleNamespace(pods={}, parts={}, context=context())
    return Outcome(RunResult(states=states), cast("ClusterState", found), cast("Plan", None), Record(id="x"), **fields)


def explained(
    node: str, pods: dict[tuple[str, str], tuple[dict[str, Any], ...]], events: list[dict[str, Any]] | ProvisionError
) -> Finding:
    state = NodeState(component="gfd", node=node, state=State.FAILED, reason="Pending (not ready after 9 s)")
    seen = SimpleNamespace(pods=pods, context=context())
    (found,) = explain(cast("KubeClient", FakeCluster(events)), outcome_of(state, seen=seen))
    return found


def test_a_pod_that_cannot_start_is_explained_by_its_events() -> None:
    """Why a volume cannot be mounted stands in no status and no log."""
    found = explained("t4-1", {("gfd", "t4-1"): (POD,)}, [MOUNT])
    assert found.what == "gfd failed on t4-1: a volume of the pod cannot be mounted"
    assert 'configmap "c" not found' in found.evidence
    assert found.where == "node t4-1, pod gfd-x"


def test_events_that_may_not_be_read_cost_only_the_evidence() -> None:
    forbidden = ProvisionError(Finding(code="GP303", what="may not list events"))
    found = explained("t4-1", {("gfd", "t4-1"): (POD,)}, forbidden)
    assert found.what == "gfd failed on t4-1: Pending (not ready after 9 s)"


def test_a_deployment_is_explained_by_its_own_pod() -> None:
    """Pods of the component's daemon set, and of other components, say nothing about it."""
    metadata = POD["metadata"]
    own = POD | {"metadata": metadata | {"ownerReferences": [{"kind": "ReplicaSet", "name": "gfd-1"}]}}
    daemon = POD | {"metadata": metadata | {"name": "daemon", "ownerReferences": [{"kind": "DaemonSet", "name": "d"}]}}
    other = POD | {"metadata": own["metadata"] | {"name": "other"}}
    found = explained("", {("nfd", "t4-1"): (other,), ("gfd", "t4-1"): (daemon, own)}, [NO_SANDBOX])
    assert found.what == "gfd failed: the node's container runtime cannot set up the pod"
    assert "open /etc/hosts: no such file" in found.evidence
    assert found.where == "pod gfd-x"


@pytest.mark.parametrize(("key", "codes"), [("gpu-provision.io/not-validated", ["GP511"]), ("team", [])])
def test_nodes_that_keep_their_startup_taint_are_reported(key: str, codes: list[str]) -> None:
    node = NodeFacts(name="t4-1", taints=({"key": key, "effect": "NoSchedule"},))
    seen = SimpleNamespace(context=context(node))
    state = NodeState(component="startup_taint", node="t4-1", state=State.READY, reason="not validated yet")
    found = explain(cast("KubeClient", None), outcome_of(state, seen=seen))
    assert [finding.code for finding in found] == codes
    assert all("kubectl taint node t4-1 gpu-provision.io/not-validated-" in finding.fix for finding in found)


def test_the_log_of_a_wait_is_the_cause_at_the_end() -> None:
    """Its log is not read once more."""
    words = "the driver cannot be built for the kernel that the node runs: ERROR: failed to build for kernel 5"
    state = NodeState(component="driver", node="t4-1", state=State.FAILED, reason=f"{words} (not ready after 9 s)")
    log = CrashLog("driver-x", Crash("ctr", 1, "exit 1", has_restarted=True), ("ERROR: failed to build for kernel 5",))
    (found,) = explain(cast("KubeClient", None), outcome_of(state, crash_logs={("driver", "t4-1"): log}))
    assert (found.code, found.where) == ("GP501", "node t4-1, pod driver-x")
    assert found.evidence == "ERROR: failed to build for kernel 5 (not ready after 9 s)"


def test_pods_that_wait_behind_one_that_failed_are_no_cause() -> None:
    """A DaemonSet replaces one pod after the other; these pods are a consequence."""
    stuck = NodeState(component="gfd", node="t4-1", state=State.FAILED, reason="gfd: exit 1: no such file")
    behind = NodeState(component="gfd", node="t4-2", state=State.FAILED, reason=f"{OUTDATED} (not ready after 9 s)")
    alone = NodeState(component="dcgm", node="t4-2", state=State.FAILED, reason=behind.reason)
    first, second = explain(cast("KubeClient", None), outcome_of(stuck, behind, alone))
    assert (first.consequence, first.where) == ("gfd waits for it on t4-2", "node t4-1")
    assert second.what.startswith("dcgm failed on t4-2")


STAYS = Finding(code="GP517", what="t4-1 stays cordoned")
CONTINUATION = "the controller goes on with gpustack/main"


class _Run:
    """One that lasts until it is cancelled."""

    is_following = True

    def __init__(self, continuation: str) -> None:
        self.continuation, self._cancelled = continuation, threading.Event()

    def execute(self) -> Any:
        self._cancelled.wait(60)
        raise RunFailedError(Finding(code="GP1", what="cancelled"))

    def unfinished_nodes(self) -> tuple[Finding, ...]:
        assert self._cancelled.is_set(), "only then it is what is left"
        return (STAYS,)

    def cancel(self) -> None:
        self._cancelled.set()


def _interrupted(make: Callable[..., Any]) -> BaseException:
    """Return what comes out of a run that is interrupted while a caller waits for it."""
    nothing: Any = None
    run = RunThread(nothing, nothing, nothing, 0, make=make)
    run.start()

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run.wait_for("driver", interrupt)
    assert run.is_done, "it had its time to end"
    return caught.value


@pytest.mark.parametrize("continuation", [CONTINUATION, ""])
def test_an_interrupt_names_continued_work_and_unfinished_nodes(continuation: str) -> None:
    """A controller is not interrupted by a command that follows it."""
    interrupt = _interrupted(lambda *_, **__: _Run(continuation))
    assert getattr(interrupt, "__notes__", []) == [continuation][: bool(continuation)]
    assert attached_findings(interrupt) == (STAYS,)


class _Broken(_Run):
    """One that ends early."""

    def __init__(self, error: ProvisionError) -> None:
        super().__init__("")
        self._error = error

    def execute(self) -> Any:
        self.cancel()
        raise self._error


@pytest.mark.parametrize(("kind", "more"), [(RunFailedError, (STAYS,)), (LockedError, ())])
def test_a_run_that_ends_early_names_unfinished_nodes(kind: type[ProvisionError], more: tuple[Finding, ...]) -> None:
    """Except for one whose lock was broken: the run with the lock continues."""
    nothing: Any = None
    why = Finding(code="GP1", what="the API server is gone")
    run = RunThread(nothing, nothing, nothing, 0, make=lambda *_, **__: _Broken(kind(why)))
    run.start()
    with pytest.raises(kind) as caught:
        run.join()
    assert caught.value.findings == (why, *more)


def test_a_summary_counts_nodes_and_names_the_first_missing() -> None:
    found = [
        NodeState(component="gfd", node="", state=State.READY),
        NodeState(component="gfd", node="a", state=State.READY),
        NodeState(component="gfd", node="b", state=State.PROGRESSING, reason="ImagePullBackOff"),
        NodeState(component="dcgm", node="b", state=State.PROGRESSING, reason="other"),
    ]
    states = {(state.component, state.node): state for state in found}
    assert summary(states, "gfd") == "1/2 ready; b: ImagePullBackOff"
    assert summary({}, "gfd") == "0/0 ready"


NO_TOOLKIT = Finding(code="GP425", what="no Driver Toolkit image", evidence="the ImageStream has no tags", fix="oc tag")
NO_ENTITLEMENT = Finding(code="GP425", what="driver failed on gpu-0", evidence="RHEL entitlement", fix="see")
OTHER = Finding(code="GP502", what="the image cannot be pulled")


def test_a_failure_that_the_plan_names_is_one_finding() -> None:
    """The plan has the release and the command; the log of the pod is evidence."""
    found = merge_evidence((NO_ENTITLEMENT, OTHER), (STAYS, NO_TOOLKIT))
    assert found == (OTHER, STAYS, replace(NO_TOOLKIT, evidence="the ImageStream has no tags; RHEL entitlement"))
    assert merge_evidence((OTHER,), (NO_TOOLKIT,)) == (OTHER, NO_TOOLKIT)
    assert merge_evidence((NO_ENTITLEMENT,), (STAYS,)) == (NO_ENTITLEMENT, STAYS)
