"""Findings as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.output.text import PLAIN, Style, ranges

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def text(findings: Iterable[Finding], style: Style = PLAIN) -> str:
    """Return every finding as a few lines: severity, code, where and what; then what was seen and the fix."""
    return "\n".join(one(finding, style) for finding in merged(findings))


def merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings that differ in nothing but the place as one, which names the places."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    for finding, found in places.items():
        named = [*dict.fromkeys(filter(None, found))]
        yield replace(finding, where=ranges(named) if len(named) > 1 else "".join(named))


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
