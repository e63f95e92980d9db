"""All that the page of a run tells, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, RunResult, Transition


class Outcome(StrEnum):
    """How a run ended, as a word; or that it goes on."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One run.

    Attributes:
        command: The command as it was called: ``apply``.
        cluster: The cluster as people name it; empty if nobody got as far as asking it.
        began: When it began, in UTC.
        seconds: How long it took, hosts included.
        plan: What was to change; None if nobody got as far.
        hosts: The hosts as they were left; None if they took no part.
        result: How the cluster phase ended, with the findings of the whole run and the timeline of all of it.
        closing: How it ended, in a sentence; empty for that of the result.
        note: What else the reader should know.
    """

    command: str
    inventory: str
    release: str
    outcome: Outcome
    began: datetime
    seconds: float
    cluster: str = ""
    plan: Plan | None = None
    hosts: HostsResult | None = None
    result: RunResult = field(default_factory=RunResult)
    closing: str = ""
    note: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What went wrong, and what the reader should know."""
        return self.result.findings


def last_states(timeline: Iterable[Transition]) -> tuple[NodeState, ...]:
    """Return where everything stood in the end: for a run that was not asked, since it was interrupted."""
    last = {(each.component, each.node): each for each in timeline}
    return tuple(
        NodeState(component=each.component, node=each.node, state=each.state, reason=each.reason, step=each.step)
        for each in last.values()
    )
