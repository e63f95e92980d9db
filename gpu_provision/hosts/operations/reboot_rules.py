"""Whether a host that needs a reboot gets one, and what is said about it. Pure, without pyinfra."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.maintenance import HostMembership, NodeRole
from gpu_provision.hosts.result import REBOOTED
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import join_limited
from gpu_provision.planning.drain import MOST_NAMED


def reboot_reasons(record: HostRecord, *, nouveau_unwanted: bool = True) -> tuple[str, ...]:
    """Return why this host needs a reboot, each in a few words; empty if it does not."""
    held = nouveau_unwanted and record.modules.loaded.get("nouveau", 0) != 0
    reasons = (
        (held, "nouveau is loaded and in use; it stays away from the next boot on"),
        (record.system.reboot_required, "the system itself asks for one (/run/reboot-required)"),
    )
    return tuple(reason for applies, reason in reasons if applies)


def reboot_needed(host: str, reasons: Sequence[str]) -> Finding:
    """Return the warning about a host that needs a reboot."""
    return Finding(
        code=codes.REBOOT_NEEDED,
        what=f"reboot needed: {'; '.join(reasons)}",
        where=host,
        fix="drain the node, reboot it, run again",
        severity=Severity.WARNING,
    )


_HERE = "it is the machine that this runs on"


_BY_HAND = "reboot it yourself, then run again; or leave the host as it is with host_prerequisites.reboot: never"


def refusal(
    node: str, membership: HostMembership | None, *, reasons: Sequence[str], kubelet: bool, here: bool
) -> Finding | None:
    """Return why this run does not reboot a host that needs it; None if it does.

    Args:
        membership: What it is to the inventory's cluster; None without an inventory file.
        kubelet: Whether a kubelet runs on it.
        here: Whether it is the machine that runs us.
    """
    obstacle = _HERE if here else _obstacle(membership, kubelet=kubelet)
    if not obstacle:
        return None
    return Finding(
        code=codes.REBOOT_REFUSED,
        what=f"the host needs a reboot and gets none: {obstacle}",
        where=node,
        evidence="; ".join(reasons),
        fix=_BY_HAND,
    )


def _obstacle(membership: HostMembership | None, *, kubelet: bool) -> str:
    """Return what forbids a reboot; empty for nothing. Only a member of the cluster can be drained."""
    role = membership.role if membership else None
    if role is NodeRole.CONTROL_PLANE:
        return "its node belongs to the control plane"
    if role is NodeRole.MEMBER or not kubelet:
        return ""
    obstacles = {
        None: "no inventory says of which cluster",
        NodeRole.NOT_A_NODE: "the inventory's cluster has no node of its name",
        NodeRole.UNKNOWN: f"the cluster could not be asked to drain its node: {membership.why if membership else ''}",
    }
    return f"a kubelet runs on it, and {obstacles[role]}"


def stopped(node: str, other: str, reasons: Sequence[str]) -> Finding:
    """Return the error about a host that keeps waiting for its reboot."""
    return Finding(
        code=codes.REBOOT_STOPPED,
        what=f"the host needs a reboot and gets none: that of {other} went wrong",
        where=node,
        evidence="; ".join(reasons),
        fix=f"see to {other} first, then run again",
    )


def not_back(node: str, seconds: int, *, said: str, is_node: bool) -> Finding:
    """Return the error about a machine that does not come back, or never went.

    Args:
        said: What it answered when it was told to reboot; empty for nothing.
    """
    stays = "its node stays cordoned, and " if is_node else ""
    return Finding(
        code=codes.NOT_BACK,
        what=f"the machine was told to reboot and is not back {seconds} s later",
        where=node,
        evidence=said,
        consequence=f"{stays}no further machine is rebooted",
        fix="look at its console; when it is back, run again; more time: host_prerequisites.reboot_timeout",
    )


def no_effect(node: str, reasons: Sequence[str]) -> Finding:
    """Return the error about a reboot that did not help, and would not help the next time."""
    return Finding(
        code=codes.REBOOT_NO_EFFECT,
        what="the machine was rebooted, and still needs a reboot",
        where=node,
        evidence="; ".join(reasons),
        consequence="no further machine is rebooted",
        fix="find out what brings it back, or set host_prerequisites.reboot: never",
    )


def describe(reasons: Sequence[str], pods: Sequence[str]) -> tuple[str, ...]:
    """Return the change in words: the reboot and what is evicted before, or the end of an earlier run's."""
    if not reasons:
        return ("uncordoned: an earlier run had cordoned the node for a reboot",)
    evicted = (f"evicted: {join_limited(pods, MOST_NAMED)}",) if pods else ()
    return (f"{REBOOTED}{'; '.join(reasons)}", *evicted)
