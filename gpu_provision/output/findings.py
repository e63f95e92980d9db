"""The JSON documents of ``--json``: one per command, described by output.schema.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.output.text import PLAIN, Style, ranges

if TYPE_CHECKING:
    from gpu_provision.reconcile.preflight import Judgement

VERSION = 1


def document(command: str, findings: Iterable[Finding] = (), **parts: Any) -> dict[str, Any]:
    """Return the document of a command: what all have in common, and its own parts."""
    return {"schema": VERSION, "command": command, **split(findings), **parts}


def output_schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document fits."""
    schema: Mapping[str, Any] = json.loads(Path(__file__).with_name("output.schema.json").read_text(encoding="utf-8"))
    return schema


_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def text(findings: Iterable[Finding], style: Style = PLAIN) -> str:
    """Return every finding as a few lines: severity, code, where and what; then what was seen and the fix."""
    return "\n".join(finding_text(finding, style) for finding in merged(findings))


def merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings that differ in nothing but the place as one, which names the places."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    for finding, found in places.items():
        named = [*dict.fromkeys(filter(None, found))]
        yield replace(finding, where=ranges(named) if len(named) > 1 else "".join(named))


def finding_text(finding: Finding, style: Style = PLAIN) -> str:
    """Return one finding as a few lines."""
    head, *rest = str(finding).splitlines()
    mark = style.paint(_COLORS[finding.severity], f"{finding.severity.value}:")
    return "\n".join([f"{mark} {head}", *rest])


def finding_document(finding: Finding) -> dict[str, Any]:
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
        "errors": [finding_document(finding) for finding in found if finding.severity is Severity.ERROR],
        "warnings": [finding_document(finding) for finding in found if finding.severity is Severity.WARNING],
    }


def preflight_text(found: Judgement, style: Style = PLAIN) -> str:
    """Return every finding, equal ones of several hosts together, and one closing sentence."""
    blocks = [finding_text(finding, style) for finding in merged(found.findings)]
    return "\n\n".join([*blocks, _closing(found)])


def _closing(found: Judgement) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in found.findings)
    warnings = len(found.findings) - errors
    read = sum(host.gpus is not None for host in found.hosts.hosts)
    counted = f"{_number(errors, 'error')}, {_number(warnings, 'warning')}"
    verdict = counted if found.findings else "nothing to say against a run"
    return f"{_number(read, 'host')} read, nothing changed: {verdict}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
