"""What the host phase means for the cluster phase."""

from __future__ import annotations

from gpu_provision.hosts import codes
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.findings import Finding
from gpu_provision.report.names import ranges


def held_back(result: HostsResult | None, *, cluster_waits: bool) -> tuple[Finding, ...]:
    """Return that hosts which are not as declared hold back the cluster phase; nothing if there is nobody to wait."""
    failed = result.failed if result else ()
    if not failed or not cluster_waits:
        return ()
    finding = Finding(
        code=codes.HOST_FAILED,
        where=ranges(host.name for host in failed),
        what="the cluster phase was held back: these hosts are not as declared",
        fix="mend them and run again, or leave the hosts alone with --cluster-only",
    )
    return (finding,)
