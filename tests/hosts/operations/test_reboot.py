"""Reboots of simulated hosts, with a guard that keeps a diary instead of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpu_provision.hosts.messages import DrainPreview, HostMembership, NodeRole, OnProgress
from gpu_provision.hosts.operations.reboot import refusal
from gpu_provision.hosts.runner import check_hosts, prepare
from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.model.hosts import Drain, Reboot
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from tests.hosts.fleet import inventory, with_settings

NAMES = ("held-1", "held-2", "held-3", "good-1")

NEEDS = NAMES[:3]

REASON = "rebooted: nouveau is loaded and in use; it stays away from the next boot on"

BUDGET = Finding(code="GP696", what="pods did not leave", where="held-2", evidence="budget web")

BOOT_ID = "proc/sys/kernel/random/boot_id"

pytestmark = pytest.mark.usefixtures("sandbox")


@dataclass
class Diary:
    """A guard that writes down what it is asked, and whether machines are rebooted meanwhile."""

    places: dict[str, NodeRole] = field(default_factory=dict)  # of nodes that are no members
    refusing: Collection[str] = ()  # nodes that cannot be drained
    left: Collection[str] = ()  # nodes that an earlier run left cordoned
    lines: list[str] = field(default_factory=list)
    boots: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    most: int = 0  # how many were away at a time
    together: threading.Barrier | None = None

    @property
    def cordoned(self) -> frozenset[str]:
        return frozenset(self.away)

    def stop(self) -> None:
        self.lines.append("stop")

    def close(self) -> None:
        """Have nothing to give back."""

    def membership(self, node: str) -> HostMembership:
        return HostMembership(role=self.places.get(node, NodeRole.MEMBER), left_cordoned=node in self.left)

    def preview_drain(self, node: str, drain: Drain) -> DrainPreview:
        self.lines.append(f"look at {node}")
        refusal = replace(BUDGET, code="GP695", where=node) if node in self.refusing else None
        return DrainPreview(pods=(f"work/on-{node}",), refusal=refusal) if not drain.force else DrainPreview()

    def cordon_and_drain(self, node: str, drain: Drain, say: OnProgress) -> tuple[str, ...]:
        self.lines.append(f"leave {node}")
        if node in self.refusing:
            raise RunFailedError(BUDGET)
        self.away.add(node)
        self.most = max(self.most, len(self.away))
        say(f"draining for {drain.timeout_seconds} s")
        if self.together:
            self.together.wait(120)
        return (f"work/on-{node}",)

    def wait_and_uncordon(self, node: str, boot_id: str, seconds: int, say: OnProgress) -> None:
        say(f"waiting for the node, {seconds} s")
        self.lines.append(f"back {node}")
        self.boots[node] = boot_id
        self.away.discard(node)


@pytest.fixture
def declared(tmp_path: Path) -> Inventory:
    return with_reboot(inventory(tmp_path, *NAMES), drain=Drain(timeout_seconds=77))


def with_reboot(declared: Inventory, **settings: object) -> Inventory:
    """Return the inventory with reboots where something needs one, and other prerequisites."""
    return with_settings(declared, **{"reboot": Reboot.IF_REQUIRED, **settings})


def boot_of(sandbox: Path, name: str) -> str:
    return (sandbox / "mine/hosts" / name / BOOT_ID).read_text().strip()


def test_hosts_are_rebooted_one_after_the_other_in_order(declared: Inventory, sandbox: Path) -> None:
    """Each leaves before and is awaited after, in its new boot; the one that needs nothing is left alone."""
    guard, events = Diary(), list[Event]()
    result = prepare(declared, maintenance=guard, listen=events.append)
    assert not result.failed, result.errors
    assert guard.lines == [line for name in NEEDS for line in (f"leave {name}", f"back {name}")]
    assert guard.most == 1
    assert guard.boots == {name: boot_of(sandbox, name) for name in NEEDS}
    for host in result.hosts[:3]:
        assert host.changes[-2:] == (REASON, f"evicted: work/on-{host.name}")
        assert not host.reboot_needed
    assert REASON not in result.hosts[3].changes
    assert not result.findings
    said = [event.message for event in events if event.node == "held-1"]
    drained = said.index("draining for 77 s")
    assert said[drained : drained + 4] == [
        "draining for 77 s",
        "rebooting",
        "connecting",
        "waiting for the node, 900 s",
    ]
    again = prepare(declared, maintenance=guard)
    assert [host.changes for host in again.hosts] == [()] * 4
    assert len(guard.lines) == 6


def test_as_many_at_a_time_as_the_inventory_says(declared: Inventory) -> None:
    guard = Diary(together=threading.Barrier(2))
    two = with_reboot(declared, max_parallel_reboots=2)
    result = prepare(two, maintenance=guard, limit=["held-1", "held-2"])
    assert not result.failed, result.errors
    assert guard.most == 2


def test_a_dry_run_says_who_would_go_and_what_would_move(declared: Inventory, sandbox: Path) -> None:
    """And reboots no host; a node that cannot be drained is an error of the plan."""
    prepare(with_reboot(declared, reboot=Reboot.NEVER))
    before = {name: boot_of(sandbox, name) for name in NAMES}
    guard = Diary(refusing=("held-3",))
    result = prepare(declared, maintenance=guard, dry_run=True)
    assert [host.changes for host in result.hosts[:2]] == [
        (REASON, "evicted: work/on-held-1"),
        (REASON, "evicted: work/on-held-2"),
    ]
    assert [(error.code, error.where) for error in result.errors] == [("GP695", "held-3")]
    assert sorted(guard.lines) == [f"look at {name}" for name in NEEDS]
    assert {name: boot_of(sandbox, name) for name in NAMES} == before


def test_no_reboot_follows_a_failed_drain(declared: Inventory, sandbox: Path) -> None:
    """The first is done, the second is where it went wrong, the third says so; none of them is rebooted."""
    guard = Diary(refusing=("held-2",))
    result = prepare(declared, maintenance=guard)
    assert guard.lines == ["leave held-1", "back held-1", "leave held-2"]
    assert [(error.code, error.where) for error in result.errors] == [("GP696", "held-2"), ("GP698", "held-3")]
    assert "the reboot of held-2 failed" in result.errors[1].what
    assert [host.reboot_needed for host in result.hosts] == [False, True, True, False]
    assert "nouveau " in (sandbox / "mine/hosts/held-3/proc/modules").read_text()


def test_a_machine_that_ignores_it_is_not_back_in_time(declared: Inventory, sandbox: Path) -> None:
    prepare(with_reboot(declared, reboot=Reboot.NEVER), limit=["held-1"])
    power = sandbox / "mine/hosts/held-1/.sandbox/scripts/power"
    power.write_text("#!/bin/sh\necho 'Operation inhibited by backup'\nexit 1\n")
    guard = Diary()
    result = prepare(with_reboot(declared, reboot_timeout=1), maintenance=guard, limit=["held-1"])
    assert guard.lines == ["leave held-1"]
    (error,) = result.errors
    assert (error.code, error.evidence) == ("GP697", "Operation inhibited by backup")
    assert "stays cordoned" in error.consequence


def test_a_reboot_that_does_not_help_is_not_repeated_elsewhere(declared: Inventory, sandbox: Path) -> None:
    """Something asks for it again at once; the node is given back all the same."""
    prepare(with_reboot(declared, reboot=Reboot.NEVER))
    (sandbox / "mine/hosts/held-1/run/reboot-required").touch()
    power = sandbox / "mine/hosts/held-1/.sandbox/scripts/power"
    power.write_text(power.read_text() + "\n: >/run/reboot-required\n")
    guard = Diary()
    result = prepare(declared, maintenance=guard)
    assert guard.lines == ["leave held-1", "back held-1"]
    assert [error.code for error in result.errors] == ["GP700", "GP698", "GP698"]
    assert result.errors[0].where == "held-1"


def test_what_a_killed_run_left_is_finished(declared: Inventory, sandbox: Path) -> None:
    """It has rebooted the machine, and did not get to uncordon the node: nothing is rebooted again."""
    prepare(with_reboot(declared, reboot=Reboot.NEVER), limit=["good-1"])
    before = boot_of(sandbox, "good-1")
    guard = Diary(left=("good-1",))
    result = prepare(declared, maintenance=guard, limit=["good-1"])
    assert guard.lines == ["back good-1"]
    assert guard.boots == {"good-1": before}
    assert result.hosts[0].changes == ("uncordoned: an earlier run had cordoned the node for a reboot",)


def test_a_node_that_must_not_go_keeps_the_others_from_nothing(declared: Inventory) -> None:
    guard = Diary(places={"held-1": NodeRole.CONTROL_PLANE, "held-2": NodeRole.UNKNOWN})
    result = prepare(declared, maintenance=guard)
    assert [(error.code, error.where) for error in result.errors] == [("GP699", "held-1"), ("GP699", "held-2")]
    assert guard.lines == ["leave held-3", "back held-3"]


def test_without_a_guard_nothing_with_a_kubelet_is_rebooted(declared: Inventory, sandbox: Path) -> None:
    """A machine that no kubelet runs on is: there is nothing to be taken off it."""
    prepare(with_reboot(declared, reboot=Reboot.NEVER), limit=["held-1", "held-2"])
    before = boot_of(sandbox, "held-2")
    for comm in (sandbox / "mine/hosts/held-2/proc").glob("*/comm"):
        comm.write_text("other\n")
    result = prepare(declared, limit=["held-1", "held-2"])
    assert [(error.code, error.where) for error in result.errors] == [("GP699", "held-1")]
    assert result.hosts[1].changes == (REASON,)
    assert boot_of(sandbox, "held-2") != before


def test_an_interrupt_stops_the_guard_and_says_what_is_cordoned(declared: Inventory) -> None:
    guard = Diary()

    def interrupt(event: Event) -> None:
        if event.message.startswith("draining"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        prepare(declared, maintenance=guard, listen=interrupt)
    assert guard.lines == ["leave held-1", "stop"]
    assert "still cordoned: held-1" in caught.value.__notes__


def test_without_the_setting_no_host_reboots(declared: Inventory) -> None:
    """That it is needed is a warning, as in preflight, which drains no node and fails no host for that."""
    guard = Diary()
    result = prepare(with_reboot(declared, reboot=Reboot.NEVER), maintenance=guard)
    assert not guard.lines
    judged = check_hosts(declared, limit=["held-1"])
    assert not judged.failed, judged.errors
    assert {finding.code for finding in (*result.findings, *judged.findings)} == {"GP603"}


@pytest.mark.parametrize(
    ("role", "kubelet", "here", "why"),
    [
        ("member", True, False, ""),
        ("member", False, False, ""),
        ("member", True, True, "the machine that this runs on"),
        (None, False, True, "the machine that this runs on"),
        ("control-plane", True, False, "the control plane"),
        ("control-plane", False, False, "the control plane"),
        ("not-a-node", True, False, "has no node of its name"),
        ("not-a-node", False, False, ""),
        ("unknown", True, False, "could not be asked to drain its node: the API server does not answer"),
        ("unknown", False, False, ""),
        (None, True, False, "no inventory says of which cluster"),
        (None, False, False, ""),
    ],
)
def test_only_drainable_members_and_non_nodes_are_rebooted(
    role: str | None, *, kubelet: bool, here: bool, why: str
) -> None:
    membership = HostMembership(role=NodeRole(role), unknown_reason="the API server does not answer") if role else None
    finding = refusal("held-1", membership, reasons=("nouveau is loaded",), kubelet=kubelet, here=here)
    assert (finding is None) == (not why)
    if finding:
        assert why in finding.what
        assert (finding.code, finding.where, finding.evidence) == ("GP699", "held-1", "nouveau is loaded")
