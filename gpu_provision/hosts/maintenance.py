"""What stands between a host and its reboot where the host is a node of a cluster; `reconcile` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Drain

GUARD = "gpu_provision_guard"
"""Key of ``host.connector_data`` for the Guard."""

Say = Callable[[str], None]


class Place(StrEnum):
    """What a machine is to the inventory's cluster."""

    MEMBER = "member"
    CONTROL_PLANE = "control-plane"
    STRANGER = "stranger"  # the cluster has no node of this name
    UNKNOWN = "unknown"  # the cluster could not be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a machine is to the inventory's cluster, and what an earlier run has left there.

    Attributes:
        why: Why it is not known; empty if it is.
        left_cordoned: Whether a run of ours cordoned the node for a reboot and did not get to undo it.
    """

    place: Place
    why: str = ""
    left_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """What a drain would do: pods in words, and why it will not be begun."""

    pods: tuple[str, ...] = ()
    refusal: Finding | None = None


class Guard(Protocol):
    """Keeps work away from a node while its machine is away. Nodes are named; all of it may be called at once."""

    def standing(self, node: str) -> Standing:
        """Return what a node is. Asks the cluster once for all nodes, and raises nothing."""

    def farewell(self, node: str, drain: Drain) -> Farewell:
        """Return what `leave` would do; changes nothing."""

    def leave(self, node: str, drain: Drain, say: Say) -> tuple[str, ...]:
        """Cordon a node and take its pods off it; return them in words.

        Raises:
            ProvisionError: It cannot be done; the node is as it was, but for pods that have moved.
        """

    def back(self, node: str, boot_id: str, seconds: int, say: Say) -> None:
        """Wait until a node is ready in this boot, and undo our cordon.

        Raises:
            ProvisionError: It is not ready after so many seconds; our cordon stays.
        """


class GuardAtHand(Guard, Protocol):
    """A guard in this very process, which can be stopped."""

    @property
    def cordoned(self) -> frozenset[str]:
        """The nodes that are cordoned by us at the moment."""

    def stop(self) -> None:
        """End whatever waits, for somebody wants the end; drains that go on are taken back."""

    def close(self) -> None:
        """Let others have what was kept from them while machines were away."""
