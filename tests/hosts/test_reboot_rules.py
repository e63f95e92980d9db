"""Which hosts that need a reboot get one."""

from __future__ import annotations

import pytest

from gpu_provision.hosts.maintenance import HostMembership, NodeRole
from gpu_provision.hosts.reboot_rules import describe, refusal

MEMBER = HostMembership(role=NodeRole.MEMBER)
CONTROL = HostMembership(role=NodeRole.CONTROL_PLANE)
STRANGER = HostMembership(role=NodeRole.NOT_A_NODE)
SILENT = HostMembership(role=NodeRole.UNKNOWN, why="the API server does not answer")


@pytest.mark.parametrize(
    ("membership", "kubelet", "here", "why"),
    [
        (MEMBER, True, False, ""),
        (MEMBER, False, False, ""),
        (MEMBER, True, True, "the machine that this runs on"),
        (None, False, True, "the machine that this runs on"),
        (CONTROL, True, False, "the control plane"),
        (CONTROL, False, False, "the control plane"),
        (STRANGER, True, False, "has no node of its name"),
        (STRANGER, False, False, ""),
        (SILENT, True, False, "could not be asked to drain its node: the API server does not answer"),
        (SILENT, False, False, ""),
        (None, True, False, "no inventory says of which cluster"),
        (None, False, False, ""),
    ],
)
def test_only_members_that_can_be_drained_and_machines_without_a_kubelet_are_rebooted(
    membership: HostMembership | None, *, kubelet: bool, here: bool, why: str
) -> None:
    finding = refusal("gpu-1", membership, reasons=("nouveau is loaded",), kubelet=kubelet, here=here)
    if not why:
        assert finding is None
        return
    assert finding is not None
    assert why in finding.what
    assert (finding.code, finding.where, finding.evidence) == ("GP699", "gpu-1", "nouveau is loaded")


def test_a_reboot_is_told_with_what_moves() -> None:
    assert describe(("a", "b"), ("w/p (Deployment d)",)) == ("rebooted: a; b", "evicted: w/p (Deployment d)")
    assert describe(("a",), ()) == ("rebooted: a",)
    assert describe((), ()) == ("uncordoned: an earlier run had cordoned the node for a reboot",)
