"""The hosts as the host phase left or would leave them; equal ones are grouped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_provision.hosts.result import REBOOTED, HostOutcome, HostsResult
from gpu_provision.report.names import ranges
from gpu_provision.report.style import PLAIN, Style


def text(result: HostsResult, style: Style = PLAIN, *, done: bool = True) -> str:
    """Return one block per group of equal hosts: sign, names, GPUs, then what was changed, or is still to do."""
    groups: dict[tuple[object, ...], list[HostOutcome]] = {}
    for host in result.hosts:
        likeness = (host.changes, host.failed, host.reason, host.reboot_needed, host.gpus, host.driver)
        groups.setdefault(likeness, []).append(host)
    return "\n".join(_group(group, style, done=done) for group in groups.values())


def document(result: HostsResult) -> list[dict[str, Any]]:
    """Return the hosts as JSON-able dicts."""
    return [
        {
            "host": host.name,
            "changes": list(host.changes),
            "failed": host.failed,
            "reason": host.reason,
            "reboot_needed": host.reboot_needed,
            "rebooted": is_rebooted(host),
            "gpus": host.gpus,
            "driver": host.driver,
        }
        for host in result.hosts
    ]


def is_rebooted(host: HostOutcome) -> bool:
    """Return whether this run rebooted a host, or would."""
    return any(change.startswith(REBOOTED) for change in host.changes)


def _group(group: list[HostOutcome], style: Style, *, done: bool) -> str:
    host = group[0]
    head = [f"{_sign(host, style)} {ranges(each.name for each in group)}"]
    head += [] if host.gpus is None else [f"{host.gpus} GPU{'' if host.gpus == 1 else 's'}"]
    head += [f"host driver {host.driver}"] if host.driver else []
    head += ["reboot needed"] if host.reboot_needed else []
    head += ["to do:"] if host.changes and not done else []
    return "\n".join(["  ".join(head), *(f"    {line}" for line in _lines(host))])


def _sign(host: HostOutcome, style: Style) -> str:
    if host.failed:
        return style.paint("red", "!")
    return style.paint("yellow", "~") if host.changes else style.paint("dim", "=")


def _lines(host: HostOutcome) -> Iterable[str]:
    yield from host.changes
    if host.reason:
        yield host.reason
