"""A judgement of hosts as text."""

from __future__ import annotations

from gpu_provision.model.findings import Severity
from gpu_provision.output import findings as findings_view
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.reconcile.preflight import Judgement


def preflight_text(found: Judgement, style: Style = PLAIN) -> str:
    """Return every finding, equal ones of several hosts together, and one closing sentence."""
    blocks = [findings_view.one(finding, style) for finding in findings_view.merged(found.findings)]
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
