"""What the host phase's worker process and its parent send each other: pickled values, over one Connection.

The parent sends a `HostPhase`. The worker sends `HostEvent`s, `Question`s about nodes, and at last a `HostsResult`.
Each question has one `Reply`. Imports no pyinfra: the parent has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.model.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPhase:
    """A host phase to run.

    Attributes:
        name: ``prerequisites``, ``judge`` or ``teardown``.
        groups: pyinfra's groups: name -> (hosts with their data, data of the group).
        hosts: Names of the hosts to work on, in order.
        dry_run: Whether to change nothing.
        has_maintenance: Whether the parent answers questions about nodes.
    """

    name: str
    groups: Mapping[str, Any]
    hosts: Sequence[str]
    dry_run: bool
    has_maintenance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """Progress on one host.

    Attributes:
        step: What the host begins or waits for; empty if the event is about changes.
        changes: What was changed just now, in words.
    """

    node: str
    step: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A call of `gpu_provision.hosts.maintenance.Maintenance` that the parent has to make."""

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
