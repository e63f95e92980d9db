"""Which findings about hosts a user sees: without ignored ones, and without those that the cluster reports as well."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gpu_provision.components.codes import OS_DIFFERS, RUNTIME_WITHOUT_CDI
from gpu_provision.hosts.checks import codes
from gpu_provision.model.findings import Finding, Severity


def apply_ignored(findings: Iterable[Finding], ignored: frozenset[str]) -> Iterable[Finding]:
    """Yield the findings; an ignored error becomes a warning, an ignored warning is dropped."""
    for finding in findings:
        if finding.code not in ignored:
            yield finding
        elif finding.severity is Severity.ERROR:
            yield replace(finding, severity=Severity.WARNING)


_SAID_BY_NODES = {codes.RUNTIME_OLD: RUNTIME_WITHOUT_CDI, codes.OTHER_SYSTEM: OS_DIFFERS}
"""Code of a finding about a host -> the one by which the cluster says the same of its node."""


def drop_reported_by_cluster(of_hosts: Iterable[Finding], of_cluster: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings about hosts without those that the cluster says of the nodes, too."""
    said = {(finding.code, name) for finding in of_cluster for name in re.split(r"[ ,]+", finding.where)}
    return tuple(each for each in of_hosts if (_SAID_BY_NODES.get(each.code), each.where) not in said)


def unknown_codes(ignored: Iterable[str]) -> tuple[str, ...]:
    """Return those of the codes that no rule tells."""
    return tuple(code for code in ignored if code not in codes.CODES)
