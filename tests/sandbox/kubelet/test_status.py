"""The status of a pod from the states of its containers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.kubelet.pod_status import ContainerRecord, pod_phase, pod_status


def record(name: str, state: str | int) -> ContainerRecord:
    """Return a container that waits, runs, is ready, or ended with an exit code."""
    made = ContainerRecord(name=name, image="i")
    if isinstance(state, int):
        made.run("id", "containerd", datetime(2026, 11, 24, tzinfo=UTC))
        made.end(state)
    elif state == "waiting":
        made.wait("ContainerCreating")
    else:
        made.run("id", "containerd", datetime(2026, 11, 24, tzinfo=UTC))
        made.started = made.ready = state == "ready"
    return made


def pod(inits: int, mains: int, policy: str = "Always") -> dict[str, Any]:
    """Return a pod with this many containers."""
    names = [{"name": f"c{n}"} for n in range(max(inits, mains))]
    return {"spec": {"restartPolicy": policy, "initContainers": names[:inits], "containers": names[:mains]}}


@pytest.mark.parametrize(
    ("policy", "inits", "mains", "phase"),
    [
        ("Always", [], ["waiting"], "Pending"),
        ("Always", ["running"], ["waiting"], "Pending"),
        ("Always", [0], ["running"], "Running"),
        ("Always", [1], ["waiting"], "Pending"),
        ("Always", [], [0], "Running"),
        ("Never", [], [0], "Succeeded"),
        ("Never", [], [1], "Failed"),
        ("Never", [1], ["waiting"], "Failed"),
        ("OnFailure", [], [1], "Running"),
        ("OnFailure", [], [0], "Succeeded"),
        ("Never", [], [0, "running"], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(
    policy: str, inits: list[str | int], mains: list[str | int], phase: str
) -> None:
    """As kubelets compute it."""
    of = pod(len(inits), len(mains), policy)
    records = [[record(f"c{n}", state) for n, state in enumerate(states)] for states in (inits, mains)]
    assert pod_phase(of, *records) == phase


def status_of(of: dict[str, Any], inits: list[ContainerRecord], mains: list[ContainerRecord]) -> dict[str, Any]:
    """Return the status of a pod."""
    return pod_status(of, inits, mains, host_ip="10.0.0.1", pod_ip="10.1.0.1", start_time="2026-01-01T00:00:00Z")


def test_conditions_keep_their_transition_time() -> None:
    """The time lastTransitionTime is that of the last change; foreign conditions stay."""
    first = status_of(pod(0, 1), [], [record("c0", "ready")])
    for condition in first["conditions"]:
        condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    foreign = {"type": "DisruptionTarget", "status": "True"}
    live = {**pod(0, 1), "status": {**first, "conditions": [*first["conditions"], foreign]}}
    second = status_of(live, [], [record("c0", "running")])
    times = {c["type"]: c.get("lastTransitionTime") for c in second["conditions"]}
    assert times["Initialized"] == "2020-01-01T00:00:00Z"
    assert times["Ready"] != "2020-01-01T00:00:00Z"
    assert foreign in second["conditions"]
