"""Findings as text, and the JSON documents of ``--json``: one per command.

output.schema.json beside this module describes the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.output.text import PLAIN, Style, ranges

VERSION = 1


_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def text(findings: Iterable[Finding], style: Style = PLAIN) -> str:
    """Return every finding as a few lines: severity, code, where and what; then evidence and fix."""
    return "\n".join(finding_text(finding, style) for finding in merge_findings(findings))


def merge_findings(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings that differ only in ``where`` as one."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        groups.setdefault(replace(finding, where=""), []).append(finding.where)
    for finding, group in groups.items():
        named = [*dict.fromkeys(filter(None, group))]
        yield replace(finding, where=ranges(named) if len(named) > 1 else "".join(named))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is an error."""
    return any(finding.severity is Severity.ERROR for finding in findings)


def finding_text(finding: Finding, style: Style = PLAIN) -> str:
    """Return one finding as a few lines."""
    return f"{style.paint(_COLORS[finding.severity], f'{finding.severity.value}:')} {finding}"


def to_json_value(value: Any) -> Any:
    """Return a JSON-able value: dataclasses become dicts, sequences lists, enumerations their values."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: to_json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json_value(value._asdict())
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    return [to_json_value(item) for item in value] if isinstance(value, list | tuple) else value


def split_by_severity(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the lists ``errors`` and ``warnings`` of every document."""
    every = list(findings)
    return {
        "errors": [to_json_value(finding) for finding in every if finding.severity is Severity.ERROR],
        "warnings": [to_json_value(finding) for finding in every if finding.severity is Severity.WARNING],
    }


def document(command: str, findings: Iterable[Finding] = (), **parts: Any) -> dict[str, Any]:
    """Return the document of a command: the common fields and its own parts."""
    return {"schema": VERSION, "command": command, **split_by_severity(findings), **parts}


def output_schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of every document."""
    schema: Mapping[str, Any] = json.loads(Path(__file__).with_name("output.schema.json").read_text(encoding="utf-8"))
    return schema
