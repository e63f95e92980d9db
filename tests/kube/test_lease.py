"""The Lease protocol: when a controller leads, what its runs' locks and writes rest on, and whether a holder lives."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.kube import lease as module
from gpu_provision.kube import lock
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.lease import (
    LEADER,
    LeaderElector,
    Timing,
    holder_identity,
    holder_is_alive_here,
    holder_is_dead,
    lease_manifest,
    process_identity,
)
from gpu_provision.kube.lock import WriteLock, lock_ref
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import LockedError
from tests.components.builders import inventory
from tests.kube.conftest import config_map, fault
from tests.sandbox.apiserver.conftest import eventually

ELSEWHERE = "65532@other pid 1 start 7 on 9f86d081"


@pytest.fixture
def ref(namespace: str) -> ObjectRef:
    return ObjectRef("coordination.k8s.io/v1", "Lease", namespace, "leader")


@pytest.fixture
def elect(cluster: KubeClient, ref: ObjectRef) -> Iterator[Callable[[], LeaderElector]]:
    """Make electors for the lease; what they hold is given back."""
    made: list[LeaderElector] = []

    def make() -> LeaderElector:
        made.append(LeaderElector(cluster, ref, {"version": "1"}))
        return made[-1]

    yield make
    fault(cluster)
    for each in made:
        each._released.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    return now


def held_by(cluster: KubeClient, ref: ObjectRef, holder: str) -> Manifest:
    """Have a process hold the lease, or renew it."""
    while True:
        lease = cluster.get(ref)
        written = lease_manifest(ref, holder, lease or {}, LEADER.lease_seconds, {})
        with contextlib.suppress(ConflictError):  # its holder has renewed it meanwhile
            return cluster.replace(written) if lease else cluster.create(written)


@pytest.mark.parametrize(
    "holder",
    [None, "", process_identity(), f"root@here pid 1 start 0 on {module._process_location()}"],
    ids=["no lease", "no holder", "this process", "a dead process"],  # the same in every worker of pytest-xdist
)
def test_free_lease_is_taken_at_once(
    cluster: KubeClient, ref: ObjectRef, elect: Callable[[], LeaderElector], holder: str | None
) -> None:
    live = None if holder is None else held_by(cluster, ref, holder)
    assert elect().acquire(live) == 0.0
    taken = cluster.read(ref)
    assert holder_identity(taken) == process_identity()
    assert taken["metadata"]["annotations"] == {"version": "1"}


def test_renewed_lease_is_respected(
    cluster: KubeClient, ref: ObjectRef, elect: Callable[[], LeaderElector], clock: list[float]
) -> None:
    elector = elect()
    assert elector.acquire(held_by(cluster, ref, ELSEWHERE)) == 6.0
    clock[0] += 5
    live = held_by(cluster, ref, ELSEWHERE)
    assert elector.acquire(live) == 6.0
    clock[0] += 5
    assert elector.acquire(live) == 1.0
    held_by(cluster, ref, "a faster one")
    clock[0] += 1
    assert elector.acquire(live) > 0, "the watch has not brought the other one yet"


def test_locks_of_a_dead_leader_are_inherited(
    cluster: KubeClient, ref: ObjectRef, elect: Callable[[], LeaderElector], clock: list[float]
) -> None:
    """It wrote for 4 s after its last renewal at most, and what it sent then has 5 s to arrive."""
    elector, live = elect(), held_by(cluster, ref, ELSEWHERE)
    assert elector.acquire(live)
    clock[0] += 6.5
    assert elector.acquire(live) == 0.0
    assert elector.takeover_delay(ELSEWHERE) == 2.5
    assert elector.takeover_delay("a command line") is None
    assert elector.takeover_delay("") is None
    clock[0] += 2.5
    assert elector.takeover_delay(ELSEWHERE) == 0.0


def test_locks_of_a_leader_that_gave_back_are_watched(
    cluster: KubeClient, ref: ObjectRef, elect: Callable[[], LeaderElector], clock: list[float]
) -> None:
    """It may have a run that goes on, for an unknown time."""
    elector = elect()
    assert elector.acquire(held_by(cluster, ref, ELSEWHERE))
    live = held_by(cluster, ref, "")
    clock[0] += 60
    assert elector.acquire(live) == 0.0
    assert elector.takeover_delay(ELSEWHERE) is None


@pytest.mark.parametrize("left", [0.0, 0.2, None], ids=["arrived", "on its way", "unknown"])
def test_lock_of_the_leader_before_us_is_not_watched(
    cluster: KubeClient,
    ref: ObjectRef,
    elect: Callable[[], LeaderElector],
    monkeypatch: pytest.MonkeyPatch,
    left: float | None,
) -> None:
    """What it has sent is let arrive. The lock of any other holder has to expire."""
    monkeypatch.setattr(lock, "TIMING", Timing(0.6, 0.4))
    stack, elector, messages = inventory(), elect(), list[str]()
    stack = replace(stack, cluster=replace(stack.cluster, namespace=ref.namespace))
    monkeypatch.setattr(elector, "takeover_delay", lambda holder: left if holder == ELSEWHERE else None)
    elector.acquire(None)
    held_by(cluster, lock_ref(stack), ELSEWHERE)
    cluster.leadership = elector
    with WriteLock(cluster, stack, on_wait=messages.append):
        assert holder_identity(cluster.get(lock_ref(stack))) == process_identity()
    assert bool(messages) == (left != 0.0)
    assert any("looking whether it is alive" in each for each in messages) == (left is None)


def test_run_writes_nothing_once_its_leadership_is_lost(
    cluster: KubeClient, ref: ObjectRef, elect: Callable[[], LeaderElector]
) -> None:
    """However fresh its lock is."""
    stack, elector = inventory(), elect()
    stack = replace(stack, cluster=replace(stack.cluster, namespace=ref.namespace))
    elector.acquire(None)
    cluster.leadership = elector
    with WriteLock(cluster, stack, on_wait=lambda _: None):
        cluster.apply(config_map("written", namespace=ref.namespace, data={"key": "1"}))
        held_by(cluster, ref, ELSEWHERE)
        eventually(lambda: elector.lost, "the loss")
        with pytest.raises(LockedError, match=r"GP308.*leads no more"):
            cluster.apply(config_map("written", namespace=ref.namespace, data={"key": "2"}))
    assert cluster.read(ref_of(config_map("written", namespace=ref.namespace)))["data"] == {"key": "1"}
    elector.release()
    assert holder_identity(cluster.get(ref)) == ELSEWHERE, "a lease of another one is not given back"


def test_lease_without_a_namespace_is_not_held(cluster: KubeClient) -> None:
    elector = LeaderElector(cluster, ObjectRef("coordination.k8s.io/v1", "Lease", "no-such-namespace", "leader"))
    with pytest.raises(NotFoundError):
        elector.hold(None)
    assert elector.acquire(None) > 0


def test_killed_process_is_dead_before_its_parent_knows() -> None:
    """The next run must not wait for the parent of the killed one. Of other machines nothing is known."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        holder = f"root@here pid {process.pid} start {start} on {module._process_location()}"
        assert holder_is_alive_here(holder)
        assert not holder_is_dead(holder)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        assert holder_is_dead(holder)
        assert not holder_is_alive_here(holder)
    in_a_container = holder.rpartition(" ")[0] + " 12345678"
    for foreign in (ELSEWHERE, in_a_container, "no process id"):
        assert not holder_is_dead(foreign)
        assert not holder_is_alive_here(foreign)
