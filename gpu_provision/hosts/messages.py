"""Messages between the worker process of the host phase and its parent: pickled values over one Connection.

The parent sends a `HostPhase`. The worker sends `HostEvent`s, `Question`s about nodes, and at last a `HostsResult`.
Each question is a call of `Maintenance` and has one `WorkerReply`. Imports no pyinfra, as the parent has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Drain

OnProgress = Callable[[str], None]


class NodeRole(StrEnum):
    """The role of a machine in the inventory's cluster."""

    MEMBER = "member"
    CONTROL_PLANE = "control-plane"
    NOT_A_NODE = "not-a-node"  # the cluster has no node of this name
    UNKNOWN = "unknown"  # the cluster does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMembership:
    """The role of a machine in the inventory's cluster, and whether an earlier run left its node cordoned."""

    role: NodeRole
    unknown_reason: str = ""  # why the role is not known; empty if it is
    left_cordoned: bool = False  # whether an earlier run cordoned the node for a reboot and did not uncordon it


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPreview:
    """The pods that a drain would evict, in words, and why the drain would be refused."""

    pods: tuple[str, ...] = ()
    refusal: Finding | None = None


class Maintenance(Protocol):
    """Cordons and drains nodes around reboots; thread-safe."""

    def membership(self, node: str) -> HostMembership:
        """Return the role of a node; one request for all nodes. Raises nothing."""

    def preview_drain(self, node: str, drain: Drain) -> DrainPreview:
        """Return the preview of `cordon_and_drain`; changes nothing."""

    def cordon_and_drain(self, node: str, drain: Drain, on_progress: OnProgress) -> tuple[str, ...]:
        """Cordon a node and evict its pods; return them in words.

        Raises:
            ProvisionError: The drain failed; the node is uncordoned, and evicted pods have moved.
        """

    def wait_and_uncordon(self, node: str, boot_id: str, seconds: int, on_progress: OnProgress) -> None:
        """Wait until a node is ready in this boot, and uncordon it.

        Raises:
            ProvisionError: The node is not ready after so many seconds; the cordon stays.
        """


class LocalMaintenance(Maintenance, Protocol):
    """Maintenance in this process, which can be stopped."""

    @property
    def cordoned(self) -> frozenset[str]:
        """The nodes that this run has cordoned and not uncordoned."""

    def stop(self) -> None:
        """End all waits, and undo drains in progress."""

    def close(self) -> None:
        """Release the lock of the drains and reboots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPhase:
    """A host phase to run."""

    name: str  # ``prerequisites``, ``judge`` or ``teardown``
    groups: Mapping[str, Any]  # pyinfra's groups: name -> (hosts with their data, data of the group)
    hosts: Sequence[str]  # names of the hosts to work on, in order
    dry_run: bool  # whether to change nothing
    has_maintenance: bool = False  # whether the parent answers questions about nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """Progress on one host."""

    node: str
    step: str = ""  # the current step or wait; empty for an event about changes
    changes: tuple[str, ...] = ()  # the last changes, in words


@dataclass(frozen=True, slots=True)
class Question:
    """A call of `gpu_provision.hosts.messages.Maintenance` that the parent has to make."""

    number: int
    method: str
    node: str
    arguments: tuple[Any, ...] = ()
    reports_progress: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The return value of a call, or its findings."""

    number: int
    value: Any = None
    errors: tuple[Finding, ...] = ()
