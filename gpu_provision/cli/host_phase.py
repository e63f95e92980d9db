"""What the host phase means for the cluster phase."""

from __future__ import annotations

from gpu_provision.cli import codes
from gpu_provision.hosts import codes as host_codes
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.report.names import ranges


def require_done(result: HostsResult | None, *, cluster_waits: bool) -> None:
    """Raise RunFailed if a host is not as declared: a finding per host, and what that holds back."""
    failed = result.failed if result else ()
    if not failed:
        return
    findings = [finding for host in failed for finding in reasons(host)]
    if cluster_waits:
        findings.append(_held_back(tuple(host.name for host in failed)))
    raise RunFailed(*findings, *(result.findings if result else ()))


def reasons(host: HostOutcome) -> tuple[Finding, ...]:
    """Return why a host is not as declared, as findings."""
    return host.errors or (Finding(code=codes.HOST_FAILED, where=host.name, what=host.reason),)


def _held_back(names: tuple[str, ...]) -> Finding:
    return Finding(
        code=host_codes.HOST_FAILED,
        where=ranges(names),
        what="the cluster phase was held back: these hosts are not as declared",
        fix="mend them and run again, or leave the hosts alone with --cluster-only",
    )
