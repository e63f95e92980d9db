"""The result of the host phase; imports no pyinfra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

REBOOTED = "rebooted: "
"""Prefix of the change for a reboot; its reasons follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """The result of the host phase, or of a check, on one host."""

    name: str  # of the node
    changes: tuple[str, ...] = ()  # done, or planned in a dry run, in words
    failed: bool = False  # whether the host is not as declared
    reason: str = ""  # first error, its fix and the number of others; empty if the host did not fail
    reboot_needed: bool = False  # whether a change takes effect only after a reboot
    gpus: int | None = None  # NVIDIA GPUs on its PCI bus; None if unread
    kernel: str = ""  # release of its running kernel; empty if unread
    driver: str | None = None  # version of a usable NVIDIA driver of the host, empty for none; None if unread
    errors: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsResult:
    """The result of the host phase on all hosts."""

    hosts: tuple[HostOutcome, ...] = ()  # in the order of the inventory, without hosts that take no part
    findings: tuple[Finding, ...] = ()  # warnings; errors are in ``hosts``

    @property
    def failed(self) -> tuple[HostOutcome, ...]:
        """Hosts that are not as declared."""
        return tuple(host for host in self.hosts if host.failed)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The errors of all hosts; hosts of a system that nothing changes share one."""
        found = dict[tuple[str, str], Finding]()
        for number, each in enumerate(error for host in self.hosts for error in host.errors):
            shared = each.code == codes.COREOS
            key = (each.code, each.what) if shared else (each.code, str(number))
            names = (found[key].where, each.where) if key in found else (each.where,)
            found[key] = replace(each, where=", ".join(names))
        return tuple(found.values())

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The errors of all hosts, then the warnings."""
        return (*self.errors, *self.findings)

    @property
    def drivers(self) -> Mapping[str, str]:
        """Node -> version of a usable host driver, empty for none; only hosts that were read."""
        return {host.name: host.driver for host in self.hosts if host.driver is not None}

    @property
    def changed(self) -> tuple[HostOutcome, ...]:
        """Hosts with changes, done or planned."""
        return tuple(host for host in self.hosts if host.changes)


NO_HOSTS = HostsResult()
"""The result without hosts."""
