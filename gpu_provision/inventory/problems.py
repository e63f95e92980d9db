"""What is wrong with a file before it is worded: an absurd file has 100,000 problems, and a reader wants a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpu_provision.model.findings import Finding, Severity

MOST = 20
"""Findings that a file gets; what is beyond them is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        line: Where in the file it is, from 1.
        severity: Whether it stops a run.
        finding: Words it, which takes the time that the search for a similar name takes.
    """

    line: int
    severity: Severity = Severity.ERROR
    finding: Callable[[], Finding]


def word(problems: Iterable[Problem], name: str) -> tuple[Finding, ...]:
    """Return findings sorted by line: the first `MOST`, errors before warnings, and one that counts the rest.

    Args:
        problems: In any order.
        name: The file as the user named it.
    """
    ranked = sorted(problems, key=lambda each: (each.severity is not Severity.ERROR, each.line))
    worded = sorted(((each.line, each.finding()) for each in ranked[:MOST]), key=_place)
    findings = tuple(finding for _, finding in worded)
    rest = ranked[MOST:]
    return (*findings, _counted(len(ranked), rest[0], name)) if rest else findings


def _place(worded: tuple[int, Finding]) -> tuple[int, str, str]:
    line, finding = worded
    return line, finding.where, finding.code


def _counted(count: int, following: Problem, name: str) -> Finding:
    return Finding(
        code="GP114",
        where=f"{name}:{following.line}",
        what=f"This file has {count:,} findings; the first {MOST} are shown, and the next one is here.",
        fix="Correct those above first: many of the rest may have the same cause.",
        severity=following.severity,
    )
