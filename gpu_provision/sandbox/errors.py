"""Errors of the sandbox: problems that a person can act on, each with the code under which it is documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxProblem:
    """One problem.

    Attributes:
        code: Stable identifier such as ``GP704``; documented in docs/findings.md.
        what: What is wrong, in one sentence.
        where: File and line, a directory, or a URL.
        evidence: What was observed: a value, a line of a log.
        fix: What the reader can do, as a command where there is one.
    """

    code: str
    what: str
    where: str = ""
    evidence: str = ""
    fix: str = ""

    def __str__(self) -> str:
        """Return the problem as one or more lines for a terminal."""
        head = " ".join(part for part in (self.code, self.where) if part)
        details = [f"  {title}: {text}" for title, text in (("evidence", self.evidence), ("fix", self.fix)) if text]
        return "\n".join([f"{head}: {self.what}", *details])


class SandboxError(Exception):
    """The sandbox, its fleet file or its directory cannot be used; ``exit_code`` is that of a command."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: SandboxProblem) -> None:
        """Keep the problems, the most important first."""
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        """Return every problem, one after the other."""
        return "\n".join(map(str, self.problems))


class FleetError(SandboxError):
    """The fleet file does not say what it should."""

    exit_code: ClassVar[int] = 65


class NoAnswerError(SandboxError):
    """The sandbox, or the cluster of simulated nodes, does not answer."""

    exit_code: ClassVar[int] = 69
