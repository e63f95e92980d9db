"""One run writes at a time, and no lock outlives its holder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime

import pytest

from gpu_provision.kube import lease as lease_module
from gpu_provision.kube import lock
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.lease import Timing, process_identity
from gpu_provision.kube.lock import WriteLock, lock_ref, unlock
from gpu_provision.kube.retry import RETRY_SECONDS
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import LockedError, ProvisionError, UnreachableError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder
from tests.components.builders import inventory
from tests.kube.conftest import config_map, fault
from tests.sandbox.apiserver.conftest import eventually

ELSEWHERE = "root@elsewhere pid 7 start 1"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TIMING", Timing(0.6, 0.1))


@pytest.fixture
def stack(namespace: str) -> Inventory:
    base = inventory()
    return replace(base, cluster=replace(base.cluster, namespace=namespace))


def held(cluster: KubeClient, stack: Inventory) -> str:
    found = holder(cluster, stack)
    return found.holder if found else ""


def holder(cluster: KubeClient, stack: Inventory) -> LockHolder | None:
    return lock.read_lock(cluster, stack).lock


def quiet(_: str) -> None:
    """Hear what is waited for, and say nothing."""


def lease(stack: Inventory, holder: str) -> Manifest:
    ref = lock_ref(stack)
    times = dict.fromkeys(("acquireTime", "renewTime"), "2026-11-21T08:00:00.000000Z")
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, **times},
    }


def test_lock_is_held_within_and_given_back_at_the_end(cluster: KubeClient, stack: Inventory) -> None:
    """Also by a run that fails; requests after it are repeated for as long as before."""
    assert unlock(cluster, stack, on_wait=quiet) == (None, "")
    with pytest.raises(ZeroDivisionError), WriteLock(cluster, stack, on_wait=quiet):
        _ = 1 // (held(cluster, stack) != process_identity())
    assert holder(cluster, stack) is None
    assert unlock(cluster, stack, on_wait=quiet) == (None, "")
    assert cluster.retry_seconds == RETRY_SECONDS


def test_ctrl_c_while_giving_back_does_not_bar_the_next_run(
    cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Manifest) -> Manifest:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), WriteLock(cluster, stack, on_wait=quiet):
        patched.setattr(cluster, "replace", interrupted)
    with WriteLock(cluster, stack, on_wait=quiet):
        assert held(cluster, stack) == process_identity()


def test_second_run_learns_holder_and_since_when(cluster: KubeClient, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet):
        since = holder(cluster, stack)
        assert since
        with pytest.raises(LockedError) as caught, WriteLock(cluster, stack, on_wait=quiet):
            pass
        assert process_identity() in caught.value.findings[0].what
        assert since.since in caught.value.findings[0].what
        with pytest.raises(LockedError):
            unlock(cluster, stack, on_wait=pytest.fail)  # a living process of this machine is known at once
        assert held(cluster, stack) == process_identity()


@pytest.mark.parametrize("holder", ["here", ELSEWHERE])
def test_lock_of_a_dead_holder_is_taken(cluster: KubeClient, stack: Inventory, holder: str) -> None:
    """Here at once, also if its process id belongs to another process by now; elsewhere after its lease."""
    if holder == "here":
        here, _, rest = process_identity().partition(" pid ")
        holder = f"{here} pid {rest.partition(' ')[0]} start 1 on {lease_module._process_location()}"
    cluster.create(lease(stack, holder))
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == process_identity()
    assert [ELSEWHERE in each for each in waits[:1]] == ([True] if holder == ELSEWHERE else [])


def test_lock_left_by_this_process_is_taken_at_once(cluster: KubeClient, stack: Inventory) -> None:
    """A controller outlives its runs; the API server may be away when one of them ends."""
    with WriteLock(cluster, stack, on_wait=quiet):
        fault(cluster, drop={"paths": "leases"})
    fault(cluster)
    assert held(cluster, stack) == process_identity()
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == process_identity()
    assert waits == []
    assert holder(cluster, stack) is None


@pytest.fixture
def renewing(cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run elsewhere that lives: a lock of its own name that renews itself, on a busy machine in time, too."""
    monkeypatch.setattr(lock, "TIMING", Timing(30, 0.1))
    theirs = WriteLock(cluster, stack, on_wait=quiet)
    theirs.identity = ELSEWHERE
    with theirs:
        yield


@pytest.mark.usefixtures("renewing")
def test_living_holder_elsewhere_keeps_the_lock(cluster: KubeClient, stack: Inventory) -> None:
    with pytest.raises(LockedError) as caught, WriteLock(cluster, stack, on_wait=quiet):
        pass
    assert ELSEWHERE in caught.value.findings[0].what


def test_one_of_two_waiting_runs_gets_the_lock(
    cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one took it after we had looked for the last time."""
    monkeypatch.setattr(lock, "TIMING", Timing(0.1, 0.2))  # so that one look is the last
    live, faster = cluster.create(lease(stack, ELSEWHERE)), "root@faster pid 8 start 1"
    reads, get = itertools.count(1), cluster.get

    def overtaken(ref: ObjectRef) -> Manifest | None:
        found = get(ref)
        if next(reads) == 2:
            cluster.replace({**live, "spec": lease(stack, faster)["spec"]})
        return found

    monkeypatch.setattr(cluster, "get", overtaken)
    with pytest.raises(LockedError) as caught, WriteLock(cluster, stack, on_wait=quiet):
        pass
    assert faster in caught.value.findings[0].what
    assert held(cluster, stack) == faster


def _overwrite(cluster: KubeClient, stack: Inventory, holder: str) -> None:
    for _ in range(50):
        live = cluster.get(lock_ref(stack))
        assert live is not None
        try:
            cluster.replace({**live, "spec": {**live["spec"], "holderIdentity": holder}})
        except ProvisionError:
            continue
        return


def test_run_without_lock_writes_nothing_more(cluster: KubeClient, stack: Inventory) -> None:
    """Whatever it has in mind: every write asks first. ClusterPlan goes on, and so do the writes of others."""
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        cluster.apply(_config_map(stack))
        _overwrite(cluster, stack, "")
        eventually(lambda: ours.lost, "the loss")
        with pytest.raises(LockedError) as caught:
            cluster.apply(_config_map(stack, color="red"))
        assert caught.value.findings[0].code == "GP308"
        assert "has no holder" in caught.value.findings[0].evidence
        live = cluster.get(ref_of(_config_map(stack)))
        assert live is not None
        assert "data" not in live
    cluster.apply(_config_map(stack, color="blue"))


def test_write_waits_for_a_late_renewal(cluster: KubeClient, stack: Inventory) -> None:
    """As after a process was stopped for a while: by then another run may have taken the lock."""
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        late = ours._renewed_at = ours._renewed_at - 60
        cluster.apply(_config_map(stack))
        assert ours._renewed_at > late + 60


def test_write_is_not_sent_if_the_late_renewal_fails(cluster: KubeClient, stack: Inventory) -> None:
    cluster.retry_seconds = 0.0
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        fault(cluster, drop={"paths": "leases"})
        eventually(
            lambda: cluster.health.silent_seconds, "a renewal that fails"
        )  # none is on its way that would succeed
        ours._renewed_at -= 60
        with pytest.raises(UnreachableError):
            cluster.apply(_config_map(stack))
    fault(cluster)
    assert cluster.get(ref_of(_config_map(stack))) is None


def _config_map(stack: Inventory, **data: str) -> Manifest:
    return config_map("written", namespace=stack.cluster.namespace, **({"data": data} if data else {}))


def test_a_lock_that_others_have_written_to_is_given_back(
    cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kubectl label, since the last renewal."""
    monkeypatch.setattr(lock, "TIMING", Timing(60, 30))
    with WriteLock(cluster, stack, on_wait=quiet):
        cluster.merge_patch(lock_ref(stack), {"metadata": {"labels": {"team": "ml"}}})
    assert holder(cluster, stack) is None


def test_new_lock_is_created_with_one_request(
    cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TIMING", Timing(60, 30))
    before = cluster.requests
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=""):
        assert cluster.requests - before == 1
        assert held(cluster, stack)
    with pytest.raises(LockedError, match="another run has written"):
        WriteLock(cluster, stack, on_wait=quiet, planned_at="").__enter__()


def test_plan_from_before_another_run_is_not_carried_out(cluster: KubeClient, stack: Inventory) -> None:
    """A run that gets the lock right after it was given back knows nothing of what was written under it."""
    planned_at = lock.read_lock(cluster, stack).version
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=planned_at):
        pass
    with pytest.raises(LockedError) as caught, WriteLock(cluster, stack, on_wait=quiet, planned_at=planned_at):
        pass
    assert caught.value.findings[0].code == "GP351"
    again = lock.read_lock(cluster, stack).version
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=again) as ours:
        assert ours.lost is None


def test_lock_age_does_not_depend_on_the_holders_clock(cluster: KubeClient, stack: Inventory) -> None:
    """The holder's clock is a year behind; it has held the lock for an hour of it."""
    cluster.version()  # so that the server's time is known
    now = parsedate_to_datetime(cluster.date)
    live = lease(stack, ELSEWHERE)
    live["spec"] |= {"acquireTime": "2025-01-01T10:00:00.000000Z", "renewTime": "2025-01-01T11:00:00.000000Z"}
    renewed = {"time": (now - timedelta(seconds=30)).isoformat()}
    live["metadata"] |= {"creationTimestamp": (now - timedelta(hours=2)).isoformat(), "managedFields": [renewed]}
    found = lock.lock_holder(cluster, live)
    assert found
    assert (found.silent_seconds, found.held_seconds) == (30, 3630)
    assert "(for 1 h 0 min, renewed " in str(found)


def test_server_that_keeps_the_first_time_gives_no_age(cluster: KubeClient, stack: Inventory) -> None:
    """As 1.20: a run that lives would look as if it had been silent since the first run ever."""
    cluster.version()  # so that the server's time is known
    live = lease(stack, ELSEWHERE)
    for written, is_known in (("2026-11-21T08:00:00Z", False), ("2026-11-21T08:00:01Z", True)):
        live["metadata"] |= {"creationTimestamp": "2026-11-21T08:00:00Z", "managedFields": [{"time": written}]}
        found = lock.lock_holder(cluster, live)
        assert found
        assert (found.silent_seconds is not None, found.held_seconds is not None) == (is_known, is_known)


def test_unlock_takes_the_lock_of_a_dead_run(cluster: KubeClient, stack: Inventory) -> None:
    cluster.create(lease(stack, ELSEWHERE))
    lost, version = unlock(cluster, stack, agreed=lambda held: held.holder != ELSEWHERE, on_wait=quiet)
    assert (lost and lost.holder, version) == (ELSEWHERE, "")
    assert held(cluster, stack) == ELSEWHERE, "no consent"
    lost, version = unlock(cluster, stack, on_wait=quiet)
    assert lost
    assert version
    assert held(cluster, stack) == ""


@pytest.mark.usefixtures("renewing")
def test_unlock_takes_a_living_runs_lock_only_by_force(
    cluster: KubeClient, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LockedError) as caught:
        unlock(cluster, stack, on_wait=quiet)
    assert caught.value.findings[0].code == "GP350"
    assert ELSEWHERE in caught.value.findings[0].what
    assert held(cluster, stack) == ELSEWHERE
    monkeypatch.setattr(lock, "TIMING", Timing(0.6, 0.1))  # is waited for
    during: list[str] = []
    lost, _ = unlock(cluster, stack, force=True, on_wait=lambda _: during.append(held(cluster, stack)))
    assert lost
    assert during == [process_identity()], "no other run gets it before that run has noticed"
    assert held(cluster, stack) == ""


def test_label_on_the_lease_does_not_take_it(cluster: KubeClient, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        live = cluster.patch_labels(lock_ref(stack), "", {"seen": "by-an-administrator"})
        before = live["metadata"]["resourceVersion"]
        eventually(lambda: (cluster.get(lock_ref(stack)) or live)["metadata"]["resourceVersion"] != before, "a renewal")
        assert ours.lost is None
