"""Findings as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.report.style import PLAIN, Style

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def text(findings: Iterable[Finding], style: Style = PLAIN) -> str:
    """Return every finding as a few lines: severity, code, where and what; then what was seen and the fix."""
    return "\n".join(one(finding, style) for finding in findings)


def one(finding: Finding, style: Style = PLAIN) -> str:
    """Return one finding as a few lines."""
    head, *rest = str(finding).splitlines()
    mark = style.paint(_COLORS[finding.severity], f"{finding.severity.value}:")
    return "\n".join([f"{mark} {head}", *rest])


def document(finding: Finding) -> dict[str, Any]:
    """Return one finding as a JSON-able dict."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "where": finding.where,
        "what": finding.what,
        "evidence": finding.evidence,
        "consequence": finding.consequence,
        "fix": finding.fix,
    }


def split(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the two lists that every document has: ``errors`` and ``warnings``."""
    found = list(findings)
    return {
        "errors": [document(finding) for finding in found if finding.severity is Severity.ERROR],
        "warnings": [document(finding) for finding in found if finding.severity is Severity.WARNING],
    }
