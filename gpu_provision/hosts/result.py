"""How the host phase ended, as values; imports no pyinfra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.model.findings import Finding

REBOOTED = "rebooted: "
"""How the change begins that is a reboot, done or to come; its reasons follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """One host after the host phase, or after a look at it."""

    name: str  # of the node
    changes: tuple[str, ...] = ()  # what was changed, or would be, in words; empty for "No changes"
    failed: bool = False  # whether it is not as declared after all
    reason: str = ""  # why it failed, and what helps; empty if it did not
    reboot_needed: bool = False  # whether something takes effect only after a reboot
    gpus: int | None = None  # NVIDIA GPUs on its PCI bus; None if it was not asked
    kernel: str = ""  # release of its running kernel; empty if it was not asked
    driver: str | None = None  # version of a usable NVIDIA driver of its own, empty for none; None if it was not asked
    errors: tuple[Finding, ...] = ()  # why it failed; empty if it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsResult:
    """The host phase as a whole."""

    hosts: tuple[HostOutcome, ...] = ()  # in the order of the inventory; hosts that take no part are missing
    findings: tuple[Finding, ...] = ()  # warnings that the reader should know; why a host failed stands with the host

    @property
    def failed(self) -> tuple[HostOutcome, ...]:
        """Hosts that are not as declared."""
        return tuple(host for host in self.hosts if host.failed)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Why hosts failed."""
        return tuple(finding for host in self.hosts for finding in host.errors)

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Why hosts failed, then what the reader should know."""
        return (*self.errors, *self.findings)

    @property
    def drivers(self) -> Mapping[str, str]:
        """Node -> version of a usable driver of the host's own, empty for none; hosts that were read."""
        return {host.name: host.driver for host in self.hosts if host.driver is not None}

    @property
    def changed(self) -> tuple[HostOutcome, ...]:
        """Hosts that were, or would be, changed."""
        return tuple(host for host in self.hosts if host.changes)


NO_HOSTS = HostsResult()
"""Hosts took no part."""
