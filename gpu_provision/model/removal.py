"""How a removal ended."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """How a removal ended.

    Attributes:
        cluster: The cluster as people name it.
        changes: What was written, in order; of a dry run, what would be.
        evicted: Pods that were evicted, or would be, in words.
        requests: Number of API requests.
        findings: What was left over, what stays and why.
    """

    cluster: str
    changes: tuple[Change, ...] = ()
    evicted: tuple[str, ...] = ()
    requests: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
