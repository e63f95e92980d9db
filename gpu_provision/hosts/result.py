"""How the host phase ended, as values; imports no pyinfra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.model.findings import Finding

REBOOTED = "rebooted: "
"""How the change begins that is a reboot, done or to come; its reasons follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """One host after the host phase, or after a look at it.

    Attributes:
        name: Name of the node.
        changes: What was changed, or would be, in words; empty for "No changes".
        failed: Whether it is not as declared after all.
        reason: Why it failed, and what helps; empty if it did not.
        reboot_needed: Whether something takes effect only after a reboot.
        gpus: NVIDIA GPUs on its PCI bus; None if it was not asked.
        kernel: Release of its running kernel; empty if it was not asked.
        driver: Version of a usable NVIDIA driver of the host's own, empty for none; None if it was not asked.
        errors: Why it failed, as findings; empty if it did not.
    """

    name: str
    changes: tuple[str, ...] = ()
    failed: bool = False
    reason: str = ""
    reboot_needed: bool = False
    gpus: int | None = None
    kernel: str = ""
    driver: str | None = None
    errors: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsResult:
    """The host phase as a whole.

    Attributes:
        hosts: In the order of the inventory; hosts that take no part are missing.
        findings: Warnings that the reader should know; why a host failed stands with the host.
    """

    hosts: tuple[HostOutcome, ...] = ()
    findings: tuple[Finding, ...] = ()

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
