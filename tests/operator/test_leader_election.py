"""When a controller leads, and when it leaves that to another one."""

from __future__ import annotations

import threading
from importlib.metadata import version
from typing import Any, cast

import pytest

from gpu_provision.kube import fence
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.fence import identity
from gpu_provision.kube.informer import Mirror
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Locked, Unreachable
from gpu_provision.operator import leader_election
from gpu_provision.operator.leader_election import Leadership
from gpu_provision.operator.version_skew import version_of

LEASE = ObjectRef("coordination.k8s.io/v1", "Lease", "gpu-operator", "gpu-provision-operator")
ELSEWHERE = "65532@other pid 1 start 7 on 9f86d081"


class Server:
    """Keeps one lease, shows it to whoever follows it, and can be deaf."""

    def __init__(self, holder: str = "") -> None:
        """Start with somebody's lease, or with none."""
        spec = {"holderIdentity": holder, "renewTime": "2026-11-22T08:00:00.000000Z"}
        self.lease: Manifest = {"metadata": {"resourceVersion": "1"}, "spec": spec} if holder else {}
        self.waits: list[float] = []
        self.is_deaf = False
        self.server = "https://127.0.0.1"

    def of(self, _scope: object) -> dict[ObjectRef, Manifest]:
        """Return the live copy."""
        return {LEASE: self.lease} if self.lease else {}

    def wait(self, seconds: float) -> bool:
        """Let no time pass."""
        self.waits.append(seconds)
        return False

    def replace(self, lease: Manifest) -> Manifest:
        """Take a lease."""
        if self.is_deaf:
            raise Unreachable(Finding(code="GP301", what="the API server does not answer"))
        version = str(int(self.lease.get("metadata", {}).get("resourceVersion", "0")) + 1)
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": version}}
        return self.lease

    create = replace

    @property
    def holder(self) -> str:
        """Who has the lease."""
        return str(self.lease["spec"].get("holderIdentity", ""))


def of(server: Any) -> Leadership:
    return Leadership(cast("Cluster", server), LEASE, identity())


def leads(claim: Leadership, server: Any) -> bool:
    return claim.wait(cast("Mirror", server))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when it is told to."""
    now = [1000.0]
    monkeypatch.setattr(leader_election, "now", lambda: now[0])
    return now


@pytest.mark.parametrize(
    "holder",
    ["", identity(), f"root@here pid 1 start 0 on {fence._place()}"],
    ids=["nobody", "ourselves", "a process that has ended"],  # the same in every worker of pytest-xdist
)
def test_nobody_waits_for_a_lease_that_nobody_has(holder: str) -> None:
    """Also if it names a process of this machine that has ended, or ourselves."""
    server = Server(holder)
    assert leads(of(server), server)
    assert server.holder == identity()
    assert version_of(server.lease) == version("gpu-provision")
    assert server.waits == []


def test_another_ones_lease_is_respected_while_it_is_renewed(clock: list[float]) -> None:
    server = Server(ELSEWHERE)
    claim = of(server)
    assert not leads(claim, server)
    clock[0] += 5
    server.replace(server.lease)
    assert not leads(claim, server)
    clock[0] += 5
    assert not leads(claim, server)
    clock[0] += 1
    assert leads(claim, server)
    assert server.waits == [6.0, 6.0, 1.0]


def test_a_renewal_that_is_not_answered_is_tried_again_after_a_pause(clock: list[float]) -> None:
    """Until the lease may be another one's: from then on it is not ours any more, whatever is answered."""
    server = Server()
    claim = of(server)
    assert leads(claim, server)
    assert claim.renew_in() == 2.0
    server.is_deaf = True
    clock[0] += 2
    assert claim.renew()
    assert claim.renew_in() > 0
    server.is_deaf = False
    assert claim.renew()
    assert claim.renew_in() == 2.0
    server.is_deaf = True
    clock[0] += 6
    assert not claim.renew()
    server.is_deaf = False
    assert not claim.renew()


def test_runs_write_while_the_lease_is_fresh_and_not_after_it_was_lost(clock: list[float]) -> None:
    """One that is late is waited for: it is another thread that renews."""
    server = Server()
    claim = of(server)
    assert leads(claim, server)
    clock[0] += 4
    assert not claim.await_renewal()
    clock[0] += 0.1
    claim._news = Renewing(claim)
    assert claim.await_renewal()
    server.is_deaf = True
    clock[0] += 6
    claim._news = Renewing(claim)
    with pytest.raises(Locked, match="GP308"):
        claim.await_renewal()


class Renewing(threading.Condition):
    """Has a lease renewed as soon as somebody waits for that."""

    def __init__(self, claim: Leadership) -> None:
        """Take whom to have renew."""
        super().__init__()
        self.claim = claim

    def wait(self, timeout: float | None = None) -> bool:
        """Renew."""
        assert timeout is not None
        self.claim.renew()
        return True


def test_a_dead_leaders_locks_are_free_once_nothing_of_it_can_arrive_any_more(clock: list[float]) -> None:
    """It wrote for 4 s after its last renewal at most, and what it sent then has 5 s to arrive."""
    server = Server(ELSEWHERE)
    claim = of(server)
    assert not leads(claim, server)
    clock[0] += 6.5
    assert leads(claim, server)
    assert claim.inherited_in(ELSEWHERE) == 2.5
    assert claim.inherited_in("somebody else") is None
    clock[0] += 2.5
    assert claim.inherited_in(ELSEWHERE) == 0.0


def test_a_leader_that_gave_its_lease_back_may_have_a_run_that_goes_on(clock: list[float]) -> None:
    """It is not known for how long, so that its locks have to expire."""
    server = Server(ELSEWHERE)
    claim = of(server)
    assert not leads(claim, server)
    server.replace({**server.lease, "spec": {}})
    clock[0] += 60
    assert leads(claim, server)
    assert claim.inherited_in(ELSEWHERE) is None
