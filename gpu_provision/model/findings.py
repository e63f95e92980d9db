"""Findings, the one type for all problems, and the exceptions that carry them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpu_provision.model.codes import ExitCode


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # the run stops, or did not end as declared
    WARNING = "warning"  # the run continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, with what its reader needs to act."""

    code: str  # stable identifier such as ``GP104``; documented in docs/findings.md
    what: str  # what is wrong, in one sentence
    where: str = ""  # ``file:line path``, a host, or ``Kind namespace/name``; empty if nowhere in particular
    evidence: str = ""  # a log line, a field's value, a server's message
    consequence: str = ""  # impact if nothing is done; empty where ``what`` names it
    fix: str = ""  # what the reader can do, as a command where there is one
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Return the finding as one or more lines for a terminal, without what would steer it."""
        head = " ".join(part for part in (self.code, self.where) if part)
        parts = (("evidence", self.evidence), ("impact", self.consequence), ("fix", self.fix))
        lines = [one_line(f"{head}: {self.what}")]
        # Indented, so that a further line of a text cannot pass for a part of the finding.
        lines += [
            f"  {title}: {escape_control_characters(text).replace(chr(10), chr(10) + '    ')}"
            for title, text in parts
            if text
        ]
        return "\n".join(lines)


class ProvisionError(Exception):
    """A problem that ends the run; carries findings, never prose alone.

    Tree::

        ProvisionError
        ├── InvalidInventoryError   the inventory is invalid (exit 65)
        ├── UsageError              an option or argument makes no sense here (exit 64)
        ├── UnreachableError        no answer: worth a retry (exit 69)
        ├── ForbiddenError          401 or 403: credentials or permissions (exit 1)
        ├── InvalidError            the API server rejects the request: 409, 422, other 4xx (exit 1)
        ├── LockedError             another run holds the lock (exit 75)
        └── RunFailedError          the run ended, and something is not as declared (exit 1)
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, *findings: Finding) -> None:
        """Keep the findings, most important first."""
        super().__init__(*findings)
        self.findings = findings

    def __str__(self) -> str:
        """Return every finding, one after the other."""
        return "\n".join(str(finding) for finding in self.findings)


class InvalidInventoryError(ProvisionError):
    """The inventory is invalid."""

    exit_code = ExitCode.INVALID_INVENTORY


class UsageError(ProvisionError):
    """An option or argument makes no sense here."""

    exit_code = ExitCode.USAGE


class UnreachableError(ProvisionError):
    """The API server or a host does not answer: worth a retry."""

    exit_code = ExitCode.UNREACHABLE


class ForbiddenError(ProvisionError):
    """The API server answered 401 or 403: credentials or permissions are missing."""


class InvalidError(ProvisionError):
    """The API server rejects the request: 409, 422, another 4xx."""


class LockedError(ProvisionError):
    """Another run holds the lock."""

    exit_code = ExitCode.LOCKED


class RunFailedError(ProvisionError):
    """The run ended, and something is not as declared."""

    # The partial result, a StackRun or a StackRemoval; None if the run did not begin.
    result: Any = None


def attach_findings(interrupt: KeyboardInterrupt, *findings: Finding) -> None:
    """Attach findings to an interrupt; `attached_findings` returns them."""
    interrupt.findings = (*attached_findings(interrupt), *findings)  # type: ignore[attr-defined]


def attached_findings(error: BaseException) -> tuple[Finding, ...]:
    """Return the findings of an interrupt, also if another exception has replaced it."""
    findings: tuple[Finding, ...] = getattr(error.__cause__ or error, "findings", ())
    return findings


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of one check, split by severity."""

    all: tuple[Finding, ...] = field(default=())  # those that are shown
    hidden_count: int = 0  # number of further ones, which the last one of ``all`` reports

    def __str__(self) -> str:
        """Return every finding with its severity, one after the other; empty if nothing is wrong."""
        return "\n".join(f"{finding.severity}: {finding}" for finding in self.all)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Those that stop a run."""
        return tuple(finding for finding in self.all if finding.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Those that a run survives."""
        return tuple(finding for finding in self.all if finding.severity is Severity.WARNING)


_HOSTILE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0, but for tab and newline
    "\x7f-\x9f"  # DEL and C1: U+009B begins an escape sequence as ESC [ does
    "\u2028\u2029"  # separators of lines and paragraphs
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff\ufffe\uffff"  # no characters: neither UTF-8 nor XML has them
    "]"
)


def escape_control_characters(text: str) -> str:
    r"""Return a text with each control character as its escape, such as ``\x1b``; newlines and tabs stay."""
    return _HOSTILE.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    r"""Return a text as `visible` does, newlines as ``\n`` as well: a name cannot forge a second line."""
    return escape_control_characters(text).replace("\n", r"\n")
