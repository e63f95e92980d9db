"""The hosts as the host phase left or would leave them; equal ones are grouped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from gpu_provision.model.findings import Finding
from gpu_provision.report.names import ranges
from gpu_provision.report.style import PLAIN, Style


class Host(Protocol):
    """One host after the host phase, or after a look at it.

    Attributes:
        changes: What was changed, or would be, in words.
        failed: Whether it is not as declared after all.
        reason: Why it failed, or an empty string.
        reboot_needed: Whether something takes effect only after a reboot.
        gpus: NVIDIA GPUs on its PCI bus; None if it was not asked.
    """

    @property
    def name(self) -> str:
        """Name of the node."""
        ...

    @property
    def changes(self) -> tuple[str, ...]:
        """What was or would be changed."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it is not as declared."""
        ...

    @property
    def reason(self) -> str:
        """Why."""
        ...

    @property
    def reboot_needed(self) -> bool:
        """Whether a reboot is due."""
        ...

    @property
    def gpus(self) -> int | None:
        """GPUs seen."""
        ...


class Hosts(Protocol):
    """What the host phase returns."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """In the order of the inventory."""
        ...

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the reader should know besides."""
        ...


def text(result: Hosts, style: Style = PLAIN) -> str:
    """Return one block per group of equal hosts: sign, names, GPUs, then what changes."""
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in result.hosts:
        likeness = (host.changes, host.failed, host.reason, host.reboot_needed, host.gpus)
        groups.setdefault(likeness, []).append(host)
    return "\n".join(_group(group, style) for group in groups.values())


def changing(result: Hosts) -> int:
    """Return how many hosts change."""
    return sum(bool(host.changes) for host in result.hosts)


def failed(result: Hosts) -> tuple[str, ...]:
    """Return the names of the hosts that failed."""
    return tuple(host.name for host in result.hosts if host.failed)


def document(result: Hosts) -> list[dict[str, Any]]:
    """Return the hosts as JSON-able dicts."""
    return [
        {
            "host": host.name,
            "changes": list(host.changes),
            "failed": host.failed,
            "reason": host.reason,
            "reboot_needed": host.reboot_needed,
            "gpus": host.gpus,
        }
        for host in result.hosts
    ]


def _group(group: list[Host], style: Style) -> str:
    host = group[0]
    head = [f"{_sign(host, style)} {ranges(each.name for each in group)}"]
    head += [] if host.gpus is None else [f"{host.gpus} GPU{'' if host.gpus == 1 else 's'}"]
    head += ["reboot needed"] if host.reboot_needed else []
    return "\n".join(["  ".join(head), *(f"    {line}" for line in _lines(host))])


def _sign(host: Host, style: Style) -> str:
    if host.failed:
        return style.paint("red", "!")
    return style.paint("yellow", "~") if host.changes else style.paint("dim", "=")


def _lines(host: Host) -> Iterable[str]:
    yield from host.changes
    if host.reason:
        yield host.reason
