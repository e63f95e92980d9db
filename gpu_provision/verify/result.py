"""How acceptance tests ended, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_provision.model.findings import ExitCode


class Outcome(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # it says nothing, for a reason
    UNREACHABLE = "unreachable"  # whom it would have asked does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of one node.

    Attributes:
        sentence: What holds if it passed: ``nouveau is not loaded``.
        node: The node's name; empty for the cluster as a whole.
        reason: Why it did not pass.
        test: pytest's name of the test.
    """

    sentence: str
    node: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    test: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks, in the order in which they ran."""

    checks: tuple[Check, ...]

    def of(self, *outcomes: Outcome) -> tuple[Check, ...]:
        """Return the checks that ended so."""
        return tuple(check for check in self.checks if check.outcome in outcomes)

    @property
    def exit_code(self) -> ExitCode:
        """0 if nothing failed, 1 if something did, 69 if somebody did not answer and nothing else failed."""
        if self.of(Outcome.FAILED):
            return ExitCode.FAILED
        return ExitCode.UNREACHABLE if self.of(Outcome.UNREACHABLE) else ExitCode.OK
