"""Logs of crashed containers, and verdicts of validations."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.history import Record
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.planning.states import NO_POD, ClusterState, ComponentNode, evaluate_states
from gpu_provision.planning.verdicts import parse_verdict
from gpu_provision.reconcile import evidence
from gpu_provision.reconcile.evidence import MAX_LOGS, Crashes, Validations
from gpu_provision.reconcile.run import Outcome
from gpu_provision.rollout.states import NOT_READY
from tests.planning.builders import VALIDATED, Stack, shown, validation_pod

BUILD = ("Installing", "ERROR: The kernel module failed to build for kernel 5.15.0-1.", "Unmounting")
WORDS = (
    "the driver cannot be built for the kernel that the node runs: "
    "ERROR: The kernel module failed to build for kernel 5.15.0-1. (ctr: exit 1)"
)
WAITS = "ctr: CrashLoopBackOff: back-off 10s restarting failed container, last exit 1"


class Logs:
    def __init__(self, *lines: str) -> None:
        self.lines, self.asked = lines, list[tuple[str, bool]]()

    def read_log(self, ref: ObjectRef, container: str, *, lines: int, previous: bool) -> tuple[str, ...]:
        assert (container, lines) == ("ctr", 30)
        self.asked.append((ref.name, previous))
        if not self.lines:
            raise ProvisionError(Finding(code="GP303", what="may not read logs"))
        return self.lines


def crashed(name: str, restarts: int = 1, *, runs: bool = False) -> dict[str, Any]:
    message = "back-off 10s restarting failed container"
    state = {"running": {}} if runs else {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    ended = {"terminated": {"exitCode": 1}}
    status = {"name": "ctr", "ready": False, "restartCount": restarts, "state": state, "lastState": ended}
    metadata = {"name": name, "namespace": "operands", "uid": f"uid-of-{name}"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
    return {**pod, "status": {"phase": "Running", "containerStatuses": [status]}}


def situation(*pods: dict[str, Any]) -> ClusterState:
    by_key = {("driver", pod["metadata"]["name"]): (pod,) for pod in pods}
    return cast("ClusterState", SimpleNamespace(pods=by_key))


def waiting(*nodes: str, reason: str = WAITS, state: State = State.PROGRESSING) -> dict[ComponentNode, NodeState]:
    return {("driver", node): NodeState(component="driver", node=node, state=state, reason=reason) for node in nodes}


def crash_reasons(crashes: Crashes, seen: ClusterState, states: dict[ComponentNode, NodeState]) -> list[str]:
    """Read all that is unread, and return the reasons."""
    for step in [*crashes.start_reading(states, seen)]:
        crashes.read_log(step)
    return [state.reason for state in crashes.add_crash_reasons(states, seen).values()]


def test_the_log_of_a_crash_is_read_once_for_each_restart() -> None:
    """The words stay while the container runs again, and until it has failed again."""
    logs = Logs(*BUILD)
    crashes, states = Crashes(cast("KubeClient", logs)), waiting("a")
    seen = situation(crashed("a"))
    assert crashes.add_crash_reasons(states, seen) is states
    assert crash_reasons(crashes, seen, states) == crash_reasons(crashes, seen, states) == [WORDS]
    running = waiting("a", reason="ctr runs, but is not ready yet")
    assert crash_reasons(crashes, situation(crashed("a", runs=True)), running) == [WORDS]
    assert logs.asked == [("a", True)]
    crash_reasons(crashes, situation(crashed("a", restarts=2)), states)
    assert logs.asked == [("a", True)] * 2
    assert crashes.find_crash_logs(waiting("a", state=State.FAILED), seen)["driver", "a"].lines == BUILD


def test_a_log_that_cannot_be_read_leaves_the_reason_as_it_is() -> None:
    """And is asked for again only after the next restart."""
    logs = Logs()
    crashes, seen = Crashes(cast("KubeClient", logs)), situation(crashed("a"))
    assert crash_reasons(crashes, seen, waiting("a")) == crash_reasons(crashes, seen, waiting("a")) == [WAITS]
    assert len(logs.asked) == 1


def test_a_rollout_has_its_own_reasons() -> None:
    crashes, seen = Crashes(cast("KubeClient", Logs(*BUILD))), situation(crashed("a"))
    assert crash_reasons(crashes, seen, waiting("a", reason=NOT_READY)) == [f"{WORDS}; {NOT_READY}"]
    assert crash_reasons(crashes, seen, waiting("a", reason="waits: 1 at a time")) == ["waits: 1 at a time"]


def test_a_fleet_that_crashes_is_reported_by_its_first_pods() -> None:
    """A thousand logs say what twenty say."""
    names = [f"n{number}" for number in range(MAX_LOGS + 5)]
    logs = Logs(*BUILD)
    crashes, seen = Crashes(cast("KubeClient", logs)), situation(*map(crashed, names))
    assert {*crash_reasons(crashes, seen, waiting(*names))} == {WORDS}
    assert len(logs.asked) == MAX_LOGS


DRIVER, PLUGIN = ("driver_validation", "t4-1"), ("device_plugin_validation", "t4-1")


class Deletions:
    """Takes deletions of many pods at once."""

    def __init__(self) -> None:
        self.deleted: list[dict[str, str]] = []

    def delete_all(self, _kind: object, namespace: str, **selectors: str) -> None:
        self.deleted.append({"namespace": namespace, **selectors})


def validations(stack: Stack, cluster: Deletions | None = None) -> Validations:
    reading: Any = SimpleNamespace(context=stack.context, observed=stack.observed, revalidate=False)
    taker: Any = cluster or Deletions()
    return Validations(taker, reading)


def pod_of(stack: Stack) -> Manifest:
    return next(item for item in stack.validations() if "t4-1" in item["metadata"]["name"])


def test_a_vector_add_of_this_run_is_evidence() -> None:
    """What had ended before is none, and both kinds of pods count."""
    stack = Stack()
    made = validations(stack)
    made.collect(stack.situation)
    assert made.evidence == {}
    stack.put(shown(stack.pod("validator", "t4-1"), began="2026-11-21T08:00:00Z", said="Test PASSED\nDone"))
    stack.put(validation_pod(pod_of(stack), "Failed"))
    made.collect(stack.situation)
    assert {key: (each.passed, each.lines) for key, each in made.evidence.items()} == {
        DRIVER: (True, ("Test PASSED", "Done")),
        PLUGIN: (False, ("no CUDA-capable device",)),
    }
    assert PLUGIN not in made.passed or parse_verdict(made.passed[PLUGIN]) is not None


@pytest.mark.parametrize("is_old", [False, True])
def test_a_passed_validation_is_recorded_before_its_pod_ends(*, is_old: bool) -> None:
    """Including the pods of a killed run, and without repeated validations."""
    stack = Stack()
    stack.passed = {}
    made = validations(stack)
    if not is_old:
        made.collect(stack.situation)
    pod = validation_pod(pod_of(stack), "Succeeded")
    stack.put(pod)
    seen = stack.situation
    made.collect(replace(seen, observed=replace(seen.observed, void_pod_uids=frozenset({pod["metadata"]["uid"]}))))
    assert (made.passed, made.evidence) == ({}, {})
    made.collect(stack.situation)
    verdict = parse_verdict(made.passed[PLUGIN])
    assert verdict
    assert verdict.began == VALIDATED
    assert DRIVER not in made.passed, "its pod stays"


def test_all_pods_that_succeeded_go_in_one_request() -> None:
    stack, cluster = Stack(), Deletions()
    made = validations(stack, cluster)
    assert not made.remove_succeeded(stack.situation)
    for pod in stack.validations():
        stack.put(validation_pod(pod, "Succeeded"))
    assert made.remove_succeeded(stack.situation)
    (deleted,) = cluster.deleted  # without those of an earlier version, which tests/scenarios/test_upgrades.py has
    assert deleted["field_selector"] == "status.phase=Succeeded"
    assert deleted["label_selector"] == (
        "gpu-provision.io/stack=sandbox,gpu-provision.io/component in (driver_validation,device_plugin_validation)"
    )


def test_a_repeated_validation_is_removed_from_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition that fails must not leave the old success for the next reader."""
    written = list[object]()
    monkeypatch.setattr(evidence.observe, "write_validations", lambda *arguments: written.append(arguments[2]))
    stack = Stack()
    for revalidate in (False, True):
        observed = replace(stack.observed, verdicts={} if revalidate else stack.passed)
        reading: Any = SimpleNamespace(context=stack.context, observed=observed, revalidate=revalidate)
        Validations(cast("KubeClient", None), reading).forget_repeated()
    assert written == [{}]


REFUSED = {
    "reason": "FailedCreate",
    "message": 'Error creating: pods "nvidia-driver-" is forbidden: unable to validate against any security context '
    'constraint: [provider "anyuid": Forbidden: not usable by user or serviceaccount]',
}


class Events:
    def __init__(self, *found: Manifest, forbidden: bool = False) -> None:
        self.found, self.forbidden, self.asked = found, forbidden, list[str]()

    def events(self, item: Manifest) -> tuple[Manifest, ...]:
        self.asked.append(f"{item['kind']} {item['metadata']['name']}")
        if self.forbidden:
            raise ProvisionError(Finding(code="GP303", what="may not list events"))
        return self.found


def without_driver_pods() -> ClusterState:
    stack = Stack()
    for node in ("t4-1", "t4-2"):
        stack.remove(stack.pod("driver", node))
    return stack.situation


def failed_drivers(cluster: Events) -> tuple[Finding, ...]:
    """Return the findings of a run that has waited for these pods."""
    seen = without_driver_pods()
    overdue = (
        replace(state, state=State.FAILED, reason=f"{state.reason} (not ready after 9 s)")
        for key, state in evaluate_states(seen).items()
        if key in {("driver", "t4-1"), ("driver", "t4-2")}
    )
    outcome = Outcome(RunResult(states=tuple(overdue)), seen, cast("Plan", None), Record(id="x"))
    return evidence.explain(cast("KubeClient", cluster), outcome)


def test_pods_that_the_api_server_refuses_are_one_finding() -> None:
    """With the event of their DaemonSet; the pods themselves do not exist."""
    cluster = Events(REFUSED)
    (found,) = failed_drivers(cluster)
    assert found.what == "driver failed on t4-1, t4-2: no SecurityContextConstraints allow its pods"
    assert 'provider "anyuid": Forbidden' in found.evidence
    assert "gpu-provision drift" in found.fix
    assert {*cluster.asked} == {"DaemonSet nvidia-driver-daemonset-ubuntu22.04"}
    for other in (Events(), Events(forbidden=True)):
        (found,) = failed_drivers(other)
        assert found.what == "driver failed on t4-1, t4-2: no pod on this node yet (not ready after 9 s)"


def test_a_deployment_whose_pods_are_refused_is_explained() -> None:
    """By its condition, without a request; status has the same words."""
    stack = Stack()
    ref = next(ref for ref in stack.members if ref.kind == "Deployment")
    refusal = {"type": "ReplicaFailure", "status": "True", **REFUSED}
    stack.members[ref] = {**stack.members[ref], "status": {"observedGeneration": 1, "conditions": [refusal]}}
    seen, cluster = stack.situation, Events()
    known = evaluate_states(seen)["nfd", ""]
    assert known.reason == f"{ref}: 0 of 1 replicas available; FailedCreate: {REFUSED['message']}"
    overdue = replace(known, state=State.FAILED, reason=f"{known.reason} (not ready after 9 s)")
    outcome = Outcome(RunResult(states=(overdue,)), seen, cast("Plan", None), Record(id="x"))
    (found,) = evidence.explain(cast("KubeClient", cluster), outcome)
    assert found.what == "nfd failed: no SecurityContextConstraints allow its pods"
    assert 'provider "anyuid": Forbidden' in found.evidence
    assert "gpu-provision drift" in found.fix
    assert not cluster.asked


def test_status_names_the_refusal_of_pods() -> None:
    seen, cluster = without_driver_pods(), Events(REFUSED)
    states = evaluate_states(seen)
    found = evidence.add_refusals(cast("KubeClient", cluster), states, seen)
    for node in ("t4-1", "t4-2"):
        assert found["driver", node].reason == f"{NO_POD}: FailedCreate: {REFUSED['message']}"
    assert found["driver", "h100-1"] == states["driver", "h100-1"]
    assert len(cluster.asked) == 1, "one request for all nodes"
