"""How the host phase ended on one host: declared, failed and why, or not known; nobody is called ready unseen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pyinfra.api.host import Host
from pyinfra.api.state import State, StateOperationHostData

from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts import trouble
from gpu_provision.hosts.connection import reached
from gpu_provision.hosts.prerequisites import reboot_reasons
from gpu_provision.hosts.telling import CHANGES, FINDINGS, REBOOT_REASONS, TROUBLE
from gpu_provision.model.findings import Finding, Severity


def failures(state: State, host: Host) -> tuple[Finding, ...]:
    """Return why a host failed in the run; empty if it did not. Comes before the host is read again."""
    if errors := _errors(host):
        return errors
    failed = _failed_step(state, host)
    if failed or host in state.failed_hosts:
        met: Finding | None = host.connector_data.get(TROUBLE)
        return (met or failed or trouble.unread(reached(host)),)
    return () if _is_finished(state, host) else (trouble.not_finished(reached(host)),)


def outcome(state: State, host: Host, errors: Sequence[Finding], record: HostRecord | None) -> dict[str, Any]:
    """Return a host's outcome as plain values: the fields of HostOutcome.

    Args:
        state: pyinfra's, after the run.
        host: One of its hosts.
        errors: What `failures` returned.
        record: The host as it is now; None if nobody could read it, and then it has failed.
    """
    errors = errors or (() if record else (trouble.not_seen(reached(host)),))
    return {
        "changes": changes(state, host),
        "failed": bool(errors),
        "reason": _in_short(errors),
        "reboot_needed": _needs_reboot(host, record),
        "gpus": len(record.pci.gpus) if record else None,
        "kernel": record.kernel.running if record else "",
        "driver": record.driver.usable if record else None,
        "errors": [asdict(finding) for finding in errors],
    }


def _errors(host: Host) -> tuple[Finding, ...]:
    kept: Iterable[Finding] = host.connector_data.get(FINDINGS, ())
    return tuple(finding for finding in kept if finding.severity is Severity.ERROR)


def _failed_step(state: State, host: Host) -> Finding | None:
    for op_hash, operation in state.ops[host].items():
        meta = operation.operation_meta
        if meta.is_complete() and meta.did_error():
            title = ", ".join(state.op_meta[op_hash].names).split(" | ")[-1]
            return trouble.step_failed(title, _last(meta.stderr_lines), reached(host))
    return None


def _is_finished(state: State, host: Host) -> bool:
    return not state.is_executing or all(_succeeded(operation) for operation in state.ops[host].values())


def _succeeded(operation: StateOperationHostData) -> bool:
    return bool(operation.operation_meta.is_complete() and operation.operation_meta.did_succeed())


def changes(state: State, host: Host) -> list[str]:
    """Return in words what operations changed, or would change if nothing was executed."""
    words = host.connector_data.get(CHANGES, {})
    done = {op_hash: not state.is_executing or _succeeded(operation) for op_hash, operation in state.ops[host].items()}
    return [each for op_hash in state.ops[host] if done[op_hash] for each in words.get(op_hash, ())]


def _needs_reboot(host: Host, record: HostRecord | None) -> bool:
    told = host.connector_data.get(REBOOT_REASONS)
    return bool(told or (record and reboot_reasons(record, nouveau_unwanted=_nouveau_unwanted(host))))


def _nouveau_unwanted(host: Host) -> bool:
    return bool((host.data.get("host_prerequisites") or {}).get("blacklist_nouveau", True))


def _last(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _in_short(errors: Sequence[Finding]) -> str:
    """Return why a host failed, most telling first; empty if it did not."""
    if not errors:
        return ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    seen = f" ({errors[0].evidence})" if errors[0].evidence else ""
    return "; ".join(filter(None, (f"{errors[0].what}{seen}", errors[0].fix))) + more
