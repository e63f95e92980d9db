"""The barrier between the hosts and the cluster: it holds the cluster back if a host failed."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api.command import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host, state

from gpu_provision.hosts.findings import report
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

GROUP = "cluster"

FIX_FAILED = "see above what these hosts said, repair them and run again, or leave them out with --exclude"
FIX_ORDER = "run without --serial and --no-wait"


@operation()
def hosts_ready() -> Generator[FunctionCommand, None, None]:
    """Have every host ready before anything is done in the cluster; only hosts of group ``cluster`` check it.

    pyinfra would otherwise go on with the hosts that are left, and not wait under ``--serial``, ``--no-wait``.
    Every host has to call this, or pyinfra would not know that it comes after their operations.
    """
    if GROUP not in host.groups or not state.is_executing:
        return
    finding = find_obstacle(state, host)
    if finding:
        yield FunctionCommand(block_cluster_phase, (finding,), {})


def block_cluster_phase(state: State, host: Host, finding: Finding) -> bool:
    """Fail the cluster host, also for pyinfra's exit code, which ``--no-wait`` would leave at 0."""
    state.failed_hosts.add(host)
    return report(state, host, finding)


def find_obstacle(state: State, cluster: Host) -> Finding | None:
    """Return why the cluster cannot be worked on yet; None if it can."""
    failed = sorted(other.name for other in state.inventory if has_failed(state, other))
    if failed:
        return _held_back(codes.HOST_FAILED, cluster, f"the host phase failed on {', '.join(failed)}", FIX_FAILED)
    others = (other for other in state.active_hosts if other.name != cluster.name)
    unfinished = sorted(other.name for other in others if _unfinished(state, other, cluster))
    if unfinished:
        return _held_back(
            codes.HOST_UNFINISHED, cluster, f"the host phase is not finished on {', '.join(unfinished)}", FIX_ORDER
        )
    return None


def _held_back(code: str, cluster: Host, reason: str, fix: str) -> Finding:
    return Finding(code=code, what=f"the cluster phase is held back: {reason}", where=cluster.name, fix=fix)


def has_failed(state: State, other: Host) -> bool:
    """Return whether a host has failed; under ``--no-wait`` only its results tell."""
    return other in state.failed_hosts or state.get_results_for_host(other).error_ops > 0


def _unfinished(state: State, other: Host, cluster: Host) -> bool:
    """Return whether a host has something to do that comes before what the cluster is at."""
    for operation_hash in other.op_hash_order:
        if operation_hash == cluster.executing_op_hash:
            return False
        if not state.ops[other][operation_hash].operation_meta.is_complete():
            return True
    return False
