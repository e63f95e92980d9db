"""What crashed containers say while a run waits for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.reconcile.steps import MOST_LOGS, Crashes
from gpu_provision.rollout.steps import NOT_READY

BUILD = ("Installing", "ERROR: The kernel module failed to build for kernel 5.15.0-1.", "Unmounting")
WORDS = (
    "the driver cannot be built for the kernel that the node runs: "
    "ERROR: The kernel module failed to build for kernel 5.15.0-1. (ctr: exit 1)"
)
WAITS = "ctr: CrashLoopBackOff: back-off 10s restarting failed container, last exit 1"


class Logs:
    """An API server that has one log, or none."""

    def __init__(self, *lines: str) -> None:
        """Keep the lines, and what is asked for."""
        self.lines, self.asked = lines, list[tuple[str, bool]]()

    def log(self, ref: ObjectRef, container: str, *, lines: int, previous: bool) -> tuple[str, ...]:
        """Answer with them."""
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


def waiting(*nodes: str, reason: str = WAITS, state: State = State.PROGRESSING) -> dict[Key, NodeState]:
    return {("driver", node): NodeState(component="driver", node=node, state=state, reason=reason) for node in nodes}


def look(crashes: Crashes, seen: ClusterState, states: dict[Key, NodeState]) -> list[str]:
    """Read all that is unread, and return the reasons."""
    for step in [*crashes.unread(states, seen)]:
        crashes.read(step)
    return [state.reason for state in crashes.told(states, seen).values()]


def test_the_log_of_a_crash_is_read_once_for_each_restart() -> None:
    """The words stay while the container runs again, and until it has failed again."""
    logs = Logs(*BUILD)
    crashes, states = Crashes(cast("Cluster", logs)), waiting("a")
    seen = situation(crashed("a"))
    assert crashes.told(states, seen) is states
    assert look(crashes, seen, states) == look(crashes, seen, states) == [WORDS]
    running = waiting("a", reason="ctr runs, but is not ready yet")
    assert look(crashes, situation(crashed("a", runs=True)), running) == [WORDS]
    assert logs.asked == [("a", True)]
    look(crashes, situation(crashed("a", restarts=2)), states)
    assert logs.asked == [("a", True)] * 2
    assert crashes.said_of(waiting("a", state=State.FAILED), seen)["driver", "a"].lines == BUILD


def test_a_log_that_cannot_be_read_leaves_the_reason_as_it_is() -> None:
    """And is asked for again only after the next restart."""
    logs = Logs()
    crashes, seen = Crashes(cast("Cluster", logs)), situation(crashed("a"))
    assert look(crashes, seen, waiting("a")) == look(crashes, seen, waiting("a")) == [WAITS]
    assert len(logs.asked) == 1


def test_a_rollout_says_it_with_its_own_words() -> None:
    crashes, seen = Crashes(cast("Cluster", Logs(*BUILD))), situation(crashed("a"))
    assert look(crashes, seen, waiting("a", reason=NOT_READY)) == [f"{WORDS}; {NOT_READY}"]
    assert look(crashes, seen, waiting("a", reason="waits: 1 at a time")) == ["waits: 1 at a time"]


def test_what_is_ready_or_blocked_is_not_asked() -> None:
    logs = Logs(*BUILD)
    for state in (State.READY, State.BLOCKED, State.PENDING):
        look(Crashes(cast("Cluster", logs)), situation(crashed("a")), waiting("a", state=state))
    assert logs.asked == []


def test_a_fleet_that_crashes_is_reported_by_its_first_pods() -> None:
    """A thousand logs say what twenty say."""
    names = [f"n{number}" for number in range(MOST_LOGS + 5)]
    logs = Logs(*BUILD)
    crashes, seen = Crashes(cast("Cluster", logs)), situation(*map(crashed, names))
    assert {*look(crashes, seen, waiting(*names))} == {WORDS}
    assert len(logs.asked) == MOST_LOGS
