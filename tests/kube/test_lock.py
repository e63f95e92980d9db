"""One writer at a time, and no lock outlives its holder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from gpu_provision.kube import fence, leases, lock
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.fence import MARK, identity, is_alive_here, is_dead, mark_of
from gpu_provision.kube.leases import lock_ref
from gpu_provision.kube.lock import WriteLock, free
from gpu_provision.kube.retry import RETRY_SECONDS
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, Locked, ProvisionError, Unreachable
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder
from tests.components.builders import inventory
from tests.kube.conftest import Lossy, config_map, fault
from tests.sandbox.apiserver.conftest import eventually

ELSEWHERE = "root@elsewhere pid 7 start 1"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.1)


@pytest.fixture
def stack(cluster: Cluster, request: pytest.FixtureRequest) -> Inventory:
    """A stack of the test's own."""
    namespace = re.sub("[^a-z0-9]+", "-", request.node.name)[-63:].strip("-")
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    base = inventory()
    return replace(base, cluster=replace(base.cluster, namespace=namespace))


def held(cluster: Cluster, stack: Inventory) -> str:
    """Who holds the lock, as the cluster says."""
    found = holder(cluster, stack)
    return found.holder if found else ""


def holder(cluster: Cluster, stack: Inventory) -> LockHolder | None:
    """The lock, as the cluster says."""
    return leases.read(cluster, stack).lock


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


def test_the_lock_is_held_within_and_given_back_at_the_end(cluster: Cluster, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet):
        assert held(cluster, stack) == identity()
    assert holder(cluster, stack) is None


@pytest.mark.parametrize("verb", ["post", "put"])
def test_an_own_write_of_the_lock_is_not_another_runs(
    cluster: Cluster, stack: Inventory, lossy: Lossy, verb: str
) -> None:
    """Its answer is lost, and the repetition is refused."""
    if verb == "put":
        with WriteLock(cluster, stack, on_wait=quiet):
            pass
    with WriteLock(lossy(), stack, on_wait=quiet):
        assert held(cluster, stack) == identity()
    assert holder(cluster, stack) is None


def test_another_run_may_take_the_lock_after_a_lost_answer(cluster: Cluster, stack: Inventory, lossy: Lossy) -> None:
    """Such as when the lease had been given back meanwhile."""

    def take_away() -> None:
        live = cluster.read(lock_ref(stack))
        cluster.replace({**lease(stack, "them pid 1 start 1 on elsewhere"), "metadata": live["metadata"]})

    with pytest.raises(Locked, match="them pid 1"), WriteLock(lossy(take_away), stack, on_wait=quiet):
        pass


def test_requests_after_the_lock_are_repeated_as_before(cluster: Cluster, stack: Inventory) -> None:
    """A removal looks for what is left when it has given the lock back."""
    with WriteLock(cluster, stack, on_wait=quiet):
        pass
    assert cluster.retry_seconds == RETRY_SECONDS


def test_a_run_that_fails_gives_the_lock_back(cluster: Cluster, stack: Inventory) -> None:
    with pytest.raises(ZeroDivisionError), WriteLock(cluster, stack, on_wait=quiet):
        _ = 1 // 0
    assert holder(cluster, stack) is None


def test_a_run_that_is_ended_while_it_gives_the_lock_back_does_not_bar_the_next_of_its_process(
    cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), WriteLock(cluster, stack, on_wait=quiet):
        patched.setattr(cluster, "replace", interrupted)
    with WriteLock(cluster, stack, on_wait=quiet):
        assert held(cluster, stack) == identity()


def interrupted(_: Manifest) -> Manifest:
    """Stand for a request during which somebody pressed Ctrl-C."""
    raise KeyboardInterrupt


def test_the_second_is_told_who_holds_it_and_since_when(cluster: Cluster, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet):
        since = holder(cluster, stack)
        assert since
        with pytest.raises(Locked) as caught, WriteLock(cluster, stack, on_wait=quiet):
            pass
        assert identity() in caught.value.findings[0].what
        assert since.since in caught.value.findings[0].what
        assert held(cluster, stack) == identity()


def test_a_dead_holder_of_this_machine_is_followed_at_once(cluster: Cluster, stack: Inventory) -> None:
    """Also if its process id belongs to somebody else by now."""
    here, _, rest = identity().partition(" pid ")
    pid = rest.partition(" ")[0]
    cluster.create(lease(stack, f"{here} pid {pid} start 1 on {fence._place()}"))
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == identity()
    assert waits == []


def test_what_an_earlier_run_of_this_process_could_not_give_back_is_taken_at_once(
    cluster: Cluster, stack: Inventory
) -> None:
    """A controller outlives its runs; the API server may be away when one of them ends."""
    with WriteLock(cluster, stack, on_wait=quiet):
        fault(cluster, drop={"paths": "leases"})
    fault(cluster)
    assert held(cluster, stack) == identity()
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == identity()
    assert waits == []
    assert holder(cluster, stack) is None


def test_a_silent_holder_elsewhere_is_followed_after_its_lease(cluster: Cluster, stack: Inventory) -> None:
    cluster.create(lease(stack, ELSEWHERE))
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == identity()
    assert ELSEWHERE in waits[0]


class Leading:
    """A mandate whose holder before us was elsewhere."""

    name = "gpu-operator/leader"

    def __init__(self, *, left: float | None = 0.0) -> None:
        """Let what that one has sent take so long to arrive."""
        self.left, self.is_lost = left, False

    def await_renewal(self) -> bool:
        """Be fresh, unless it is lost."""
        if self.is_lost:
            raise Locked(Finding(code="GP308", what="somebody else leads"))
        return False

    def inherited_in(self, holder: str) -> float | None:
        """Return what we were told; nothing more from then on."""
        left, self.left = self.left, 0.0 if self.left else self.left
        return left if holder == ELSEWHERE else None


@pytest.mark.parametrize("left", [0.0, 0.2])
def test_the_lock_of_the_leader_before_us_is_not_watched(cluster: Cluster, stack: Inventory, left: float) -> None:
    """What that one has sent is let arrive."""
    made, ours = lease(stack, ELSEWHERE), Leading(left=left)
    cluster.create({**made, "metadata": {**made["metadata"], "annotations": mark_of(Leading(), ELSEWHERE)}})
    cluster.mandate, waits = ours, list[str]()
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == identity()
        assert cluster.read(lock_ref(stack))["metadata"]["annotations"] == mark_of(ours, identity())
    assert not cluster.read(lock_ref(stack))["metadata"].get("annotations")
    assert not [told for told in waits if "looking" in told]
    assert bool(waits) == bool(left)


@pytest.mark.parametrize(
    "mark",
    ["", "gpu-operator/leader somebody else", f"elsewhere/leader {ELSEWHERE}"],
    ids=["none", "another holder's", "another mandate's"],
)
def test_a_lock_that_was_not_taken_under_our_mandate_is_watched(cluster: Cluster, stack: Inventory, mark: str) -> None:
    """Such as a command line's, that of a controller which has another lease, or of one that knew of no mandates."""
    made = lease(stack, ELSEWHERE)
    cluster.create({**made, "metadata": {**made["metadata"], "annotations": {MARK: mark}}})
    cluster.mandate, waits = Leading(), list[str]()
    with WriteLock(cluster, stack, on_wait=waits.append):
        assert held(cluster, stack) == identity()
    assert "looking whether it is alive" in waits[0]


def test_whoever_has_lost_the_mandate_writes_nothing_more(cluster: Cluster, stack: Inventory) -> None:
    """However fresh its lock is."""
    cluster.mandate = leading = Leading()
    with WriteLock(cluster, stack, on_wait=quiet):
        cluster.apply(_config_map(stack, key="1"))
        leading.is_lost = True
        with pytest.raises(Locked, match="somebody else leads"):
            cluster.apply(_config_map(stack, key="2"))
    assert cluster.read(ref_of(_config_map(stack)))["data"] == {"key": "1"}


@pytest.fixture
def renewing(cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run elsewhere that lives: a lock of its own name that renews itself, on a busy machine in time, too."""
    monkeypatch.setattr(leases, "LEASE_SECONDS", 30)
    theirs = WriteLock(cluster, stack, on_wait=quiet)
    theirs._identity = ELSEWHERE
    with theirs:
        yield


@pytest.mark.usefixtures("renewing")
def test_a_living_holder_elsewhere_keeps_it(cluster: Cluster, stack: Inventory) -> None:
    with pytest.raises(Locked) as caught, WriteLock(cluster, stack, on_wait=quiet):
        pass
    assert ELSEWHERE in caught.value.findings[0].what


class Clock:
    """Stands for the module ``time``: time passes only in its ``sleep``."""

    def __init__(self) -> None:
        """Begin."""
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class Interfering(Cluster):
    """Does something right after a lease was read."""

    def __init__(self, cluster: Cluster, *, reads: int, then: Any) -> None:
        """After ``reads`` reads, ``then`` is called once."""
        self.__dict__ = dict(cluster.__dict__)
        self._left, self._then = reads, then

    def get(self, ref: Any) -> Manifest | None:
        """Read, then let the others act."""
        found = super().get(ref)
        self._left -= 1
        if self._left == 0:
            self._then()
        return found


def test_of_two_that_waited_for_the_same_holder_one_gets_it(
    cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one took it after we had looked for the last time."""
    monkeypatch.setattr(leases, "RENEW_SECONDS", 2 * leases.LEASE_SECONDS)  # so that one look is the last
    monkeypatch.setattr(lock, "time", Clock())
    live = cluster.create(lease(stack, ELSEWHERE))
    faster = "root@faster pid 8 start 1"
    ours = Interfering(cluster, reads=2, then=lambda: cluster.replace({**live, "spec": lease(stack, faster)["spec"]}))
    with pytest.raises(Locked) as caught, WriteLock(ours, stack, on_wait=quiet):
        pass
    assert faster in caught.value.findings[0].what
    assert held(cluster, stack) == faster


def test_a_lock_that_somebody_deleted_while_we_waited_is_made_anew(cluster: Cluster, stack: Inventory) -> None:
    cluster.create(lease(stack, ELSEWHERE))
    ours = Interfering(cluster, reads=1, then=lambda: cluster.delete(lock_ref(stack)))
    with WriteLock(ours, stack, on_wait=quiet):
        assert held(cluster, stack) == identity()


def test_a_lock_that_is_taken_away_is_noticed(cluster: Cluster, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        _overwrite(cluster, stack, ELSEWHERE)
        eventually(lambda: ours.lost, "the loss")
        assert isinstance(ours.lost, Locked)
        assert ELSEWHERE in str(ours.lost)
    assert held(cluster, stack) == ELSEWHERE, "what is not ours is not given back"


def _overwrite(cluster: Cluster, stack: Inventory, holder: str) -> None:
    """Replace the lease whatever its version, as often as it takes."""
    for _ in range(50):
        live = cluster.get(lock_ref(stack))
        assert live is not None
        try:
            cluster.replace({**live, "spec": {**live["spec"], "holderIdentity": holder}})
        except ProvisionError:
            continue
        return


def test_whoever_has_lost_the_lock_writes_nothing_more(cluster: Cluster, stack: Inventory) -> None:
    """Whatever it has in mind: every write asks first. Reading goes on, and so do the writes of others."""
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        cluster.apply(_config_map(stack))
        _overwrite(cluster, stack, "")
        eventually(lambda: ours.lost, "the loss")
        with pytest.raises(Locked) as caught:
            cluster.apply(_config_map(stack, color="red"))
        assert caught.value.findings[0].code == "GP308"
        assert "nobody holds it" in caught.value.findings[0].evidence
        live = cluster.get(ref_of(_config_map(stack)))
        assert live is not None
        assert "data" not in live
    cluster.apply(_config_map(stack, color="blue"))


def test_a_write_waits_for_a_renewal_that_is_late(
    cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a process was stopped for a while: by then another run may have taken the lock."""
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        monkeypatch.setattr(leases, "LEASE_SECONDS", 30)
        late = ours._renewed_at = ours._renewed_at - 60
        cluster.apply(_config_map(stack))
        assert ours._renewed_at > late + 60


def test_a_write_with_a_late_renewal_that_fails_is_not_sent(cluster: Cluster, stack: Inventory) -> None:
    cluster.retry_seconds = 0.0
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        fault(cluster, drop={"paths": "leases"})
        eventually(lambda: cluster.silence.seconds, "a renewal that fails")  # none is on its way that would succeed
        ours._renewed_at -= 60
        with pytest.raises(Unreachable):
            cluster.apply(_config_map(stack))
    fault(cluster)
    assert cluster.get(ref_of(_config_map(stack))) is None


def _config_map(stack: Inventory, **data: str) -> Manifest:
    return config_map("written", namespace=stack.cluster.namespace, **({"data": data} if data else {}))


def test_a_lock_that_was_not_there_is_made_with_one_request(cluster: Cluster, stack: Inventory) -> None:
    before = cluster.requests
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=""):
        assert cluster.requests - before == 1
        assert held(cluster, stack)
    with pytest.raises(Locked, match="another run has written"):
        WriteLock(cluster, stack, on_wait=quiet, planned_at="").__enter__()


def test_a_plan_from_before_another_run_is_not_carried_out(cluster: Cluster, stack: Inventory) -> None:
    """Whoever gets the lock right after it was given back knows nothing of what was written under it."""
    planned_at = leases.read(cluster, stack).version
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=planned_at):
        pass
    with pytest.raises(Locked) as caught, WriteLock(cluster, stack, on_wait=quiet, planned_at=planned_at):
        pass
    assert caught.value.findings[0].code == "GP351"
    again = leases.read(cluster, stack).version
    with WriteLock(cluster, stack, on_wait=quiet, planned_at=again) as ours:
        assert ours.lost is None


def test_ages_do_not_depend_on_anybodys_clock(cluster: Cluster, stack: Inventory) -> None:
    """The holder's clock is a year behind; it has held the lock for an hour of it."""
    cluster.version()  # so that the server's time is known
    now = parsedate_to_datetime(cluster.date)
    live = lease(stack, ELSEWHERE)
    live["spec"] |= {"acquireTime": "2025-01-01T10:00:00.000000Z", "renewTime": "2025-01-01T11:00:00.000000Z"}
    renewed = {"time": (now - timedelta(seconds=30)).isoformat()}
    live["metadata"] |= {"creationTimestamp": (now - timedelta(hours=2)).isoformat(), "managedFields": [renewed]}
    found = leases.holder_of(cluster, live)
    assert found
    assert (found.silent_seconds, found.held_seconds) == (30, 3630)
    assert "(for 1 h 0 min, renewed " in str(found)


def test_a_server_that_keeps_the_first_time_alone_tells_no_age(cluster: Cluster, stack: Inventory) -> None:
    """As 1.20: a run that lives would look as if it had been silent since the first run ever."""
    cluster.version()  # so that the server's time is known
    live = lease(stack, ELSEWHERE)
    for written, is_known in (("2026-11-21T08:00:00Z", False), ("2026-11-21T08:00:01Z", True)):
        live["metadata"] |= {"creationTimestamp": "2026-11-21T08:00:00Z", "managedFields": [{"time": written}]}
        found = leases.holder_of(cluster, live)
        assert found
        assert (found.silent_seconds is not None, found.held_seconds is not None) == (is_known, is_known)


def test_a_lock_that_nobody_holds_is_no_matter(cluster: Cluster, stack: Inventory) -> None:
    assert free(cluster, stack, on_wait=quiet) == (None, "")
    with WriteLock(cluster, stack, on_wait=quiet):
        pass
    assert free(cluster, stack, on_wait=quiet) == (None, "")


def test_the_lock_of_a_run_that_is_gone_is_taken_away(cluster: Cluster, stack: Inventory) -> None:
    cluster.create(lease(stack, ELSEWHERE))
    lost, version = free(cluster, stack, agreed=lambda held: held.holder != ELSEWHERE, on_wait=quiet)
    assert (lost and lost.holder, version) == (ELSEWHERE, "")
    assert held(cluster, stack) == ELSEWHERE, "nobody agreed"
    lost, version = free(cluster, stack, on_wait=quiet)
    assert lost
    assert version
    assert held(cluster, stack) == ""


@pytest.mark.usefixtures("renewing")
def test_a_living_run_keeps_its_lock_unless_it_is_taken_by_force(
    cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Locked) as caught:
        free(cluster, stack, on_wait=quiet)
    assert caught.value.findings[0].code == "GP350"
    assert ELSEWHERE in caught.value.findings[0].what
    assert held(cluster, stack) == ELSEWHERE
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.6)  # is waited for
    during: list[str] = []
    lost, _ = free(cluster, stack, force=True, on_wait=lambda _: during.append(held(cluster, stack)))
    assert lost
    assert during == [identity()], "nobody else gets it before that run has noticed"
    assert held(cluster, stack) == ""


def test_a_living_run_of_this_machine_is_known_without_waiting(cluster: Cluster, stack: Inventory) -> None:
    waits: list[str] = []
    with WriteLock(cluster, stack, on_wait=quiet), pytest.raises(Locked):
        free(cluster, stack, on_wait=waits.append)
    assert waits == []


def test_somebody_who_annotates_the_lease_does_not_take_it(cluster: Cluster, stack: Inventory) -> None:
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        live = cluster.label(lock_ref(stack), "", {"seen": "by-an-administrator"})
        before = live["metadata"]["resourceVersion"]
        eventually(lambda: (cluster.get(lock_ref(stack)) or live)["metadata"]["resourceVersion"] != before, "a renewal")
        assert ours.lost is None


def test_a_server_that_is_silent_for_a_lease_costs_the_lock(cluster: Cluster, stack: Inventory) -> None:
    """By then another run may have taken it; the renewals go on all the same, and no thread dies of it."""
    cluster.retry_seconds = 0.0
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        fault(cluster, drop={"paths": "leases"})
        eventually(lambda: ours.lost, "the loss")
        assert ours._renewer.is_alive()
    fault(cluster)


def test_a_lock_outlives_a_silence_that_is_shorter_than_its_lease(
    cluster: Cluster, stack: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 30)
    with WriteLock(cluster, stack, on_wait=quiet) as ours:
        fault(cluster, drop={"paths": "leases", "requests": 3})
        eventually(lambda: _renewed_since(cluster, stack), "a renewal after the silence")
        assert ours.lost is None


def _renewed_since(cluster: Cluster, stack: Inventory) -> bool:
    try:
        live = cluster.get(lock_ref(stack)) or {}
    except ProvisionError:
        return False
    return bool(live["spec"]["renewTime"] > live["spec"]["acquireTime"])


def test_a_process_is_told_from_its_successor() -> None:
    process = subprocess.Popen(["sleep", "30"])
    try:
        me = identity()
        alive = me.partition(" pid ")[0] + f" pid {process.pid} start {fence._started(process.pid)} on {fence._place()}"
        assert is_alive_here(alive)
        assert not is_dead(alive)
    finally:
        process.kill()
        process.wait()
    assert is_dead(alive)
    assert not is_alive_here(alive)
    in_a_container = alive.rpartition(" ")[0] + " 12345678"
    for stranger in (ELSEWHERE, in_a_container, "somebody without a number"):
        assert not is_dead(stranger), "of other machines, and of containers that share our name, we know nothing"
        assert not is_alive_here(stranger)
