"""What rules look at, and how they tell what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.model.expectation import Expectation, ImageAnswer
from gpu_provision.model.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One machine: what is expected of it, what it is, and what the registry says about its driver image.

    Attributes:
        image: None if the registry was not asked.
    """

    expected: Expectation
    host: HostRecord
    image: ImageAnswer | None = None

    @property
    def driver_key(self) -> str:
        """The inventory's section that decides on this machine's driver."""
        return f"pools.{self.expected.pool}.driver"

    def error(self, code: str, what: str, *, evidence: str, consequence: str, fix: str) -> Finding:
        """Return a finding that stops a run on this machine; its evidence is what was read there."""
        return Finding(
            code=code, where=self.expected.node, what=what, evidence=evidence, consequence=consequence, fix=fix
        )

    def warning(self, code: str, what: str, *, evidence: str, consequence: str, fix: str) -> Finding:
        """Return a finding that a run survives."""
        return Finding(
            code=code,
            where=self.expected.node,
            what=what,
            evidence=evidence,
            consequence=consequence,
            fix=fix,
            severity=Severity.WARNING,
        )


Rule = Callable[[CheckedHost], Iterator[Finding]]
"""Yields what it finds about a machine; nothing if all is well or if the facts do not say."""
