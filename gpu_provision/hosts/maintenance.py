"""What keeps pods off a node while its machine reboots; `reconcile.maintenance` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Drain

MAINTENANCE = "gpu_provision_maintenance"
"""Key of ``host.connector_data`` for the Maintenance."""

OnProgress = Callable[[str], None]


class NodeRole(StrEnum):
    """What a machine is to the inventory's cluster."""

    MEMBER = "member"
    CONTROL_PLANE = "control-plane"
    NOT_A_NODE = "not-a-node"  # the cluster has no node of this name
    UNKNOWN = "unknown"  # the cluster does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMembership:
    """What a machine is to the inventory's cluster, and what an earlier run has left there.

    Attributes:
        why: Why the role is not known; empty if it is.
        left_cordoned: Whether an earlier run cordoned the node for a reboot and did not get to undo it.
    """

    role: NodeRole
    why: str = ""
    left_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPreview:
    """What a drain would do: the pods that it evicts, in words, and why it will not begin."""

    pods: tuple[str, ...] = ()
    refusal: Finding | None = None


class Maintenance(Protocol):
    """Keeps pods off a node while its machine is away. Several threads may call it at once."""

    def membership(self, node: str) -> HostMembership:
        """Return what a node is. Asks the cluster once for all nodes, and raises nothing."""

    def preview_drain(self, node: str, drain: Drain) -> DrainPreview:
        """Return what `cordon_and_drain` would do; changes nothing."""

    def cordon_and_drain(self, node: str, drain: Drain, on_progress: OnProgress) -> tuple[str, ...]:
        """Cordon a node and evict its pods; return them in words.

        Raises:
            ProvisionError: The drain failed; the node is as it was, but for pods that have moved.
        """

    def wait_and_uncordon(self, node: str, boot_id: str, seconds: int, on_progress: OnProgress) -> None:
        """Wait until a node is ready in this boot, and undo the cordon.

        Raises:
            ProvisionError: It is not ready after so many seconds; the cordon stays.
        """


class LocalMaintenance(Maintenance, Protocol):
    """Maintenance in this very process, which can be stopped."""

    @property
    def cordoned(self) -> frozenset[str]:
        """The nodes that this run has cordoned at the moment."""

    def stop(self) -> None:
        """End all waiting; drains in progress are taken back."""

    def close(self) -> None:
        """Release the lock that was held while machines were away."""
