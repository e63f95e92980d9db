"""What the worker process of the host phase and its parent send each other: pickled values, over one Connection.

The parent sends a `HostPhase`. The worker sends `HostEvent`s, `Question`s about nodes, and at last a `HostsResult`.
Each question is a call of `Maintenance` and has one `WorkerReply`. Imports no pyinfra: the parent has none.
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
    """What a machine is to the inventory's cluster."""

    MEMBER = "member"
    CONTROL_PLANE = "control-plane"
    NOT_A_NODE = "not-a-node"  # the cluster has no node of this name
    UNKNOWN = "unknown"  # the cluster does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMembership:
    """What a machine is to the inventory's cluster, and what an earlier run has left there."""

    role: NodeRole
    why: str = ""  # why the role is not known; empty if it is
    left_cordoned: bool = False  # whether an earlier run cordoned the node for a reboot and did not get to undo it


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
    step: str = ""  # what the host begins or waits for; empty if the event is about changes
    changes: tuple[str, ...] = ()  # what was changed just now, in words


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
    """What a call returned, or the findings that it raised."""

    number: int
    value: Any = None
    errors: tuple[Finding, ...] = ()
