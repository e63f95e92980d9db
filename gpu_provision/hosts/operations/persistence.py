"""Persistence mode of a host's own driver, decided from the host's record alone.

Without it the driver releases a GPU whenever no process uses it, and takes seconds to have it again. A driver container
starts NVIDIA's daemon by itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyinfra.context import host

from gpu_provision.hosts.checks.judge import resolve_driver
from gpu_provision.hosts.facts import FileLines
from gpu_provision.hosts.facts.driver import DAEMON
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.operations.backups import HostChange, change, change_files, exclusively, make_changes
from gpu_provision.hosts.operations.base import PATH, Commands, add_finding, host_operation, require_host
from gpu_provision.hosts.scripts import ENABLED_FILE, HOME, PERSISTENCE_FILE, PERSISTENCE_UNIT
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.hosts import Expectation

PROGRAM = "/usr/bin/nvidia-smi"

UNIT_LINES = (
    "# Written by gpu-provision: keeps the driver initialized while the GPUs are idle.",
    "[Unit]",
    "Description=Persistence mode of NVIDIA GPUs",
    f"After={DAEMON}.service",
    "[Service]",
    "Type=oneshot",
    "RemainAfterExit=yes",
    f"ExecStart={PROGRAM} -pm 1",
    "TimeoutStartSec=120",
    "[Install]",
    "WantedBy=multi-user.target",
)


def persistence_changes(record: HostRecord, *, on: bool) -> Iterator[HostChange]:
    """Yield what is missing; what others have enabled stays as it is."""
    unit, known = _unit(record) if on else "", record.persistence
    if unwanted := [name for name in known.enabled if name != unit]:
        yield change(f"units disabled: {', '.join(unwanted)}", exclusively(f"{PATH}; {disable(unwanted)}"))
    lines = UNIT_LINES if unit == PERSISTENCE_UNIT else None
    if _without_comments(lines) != _without_comments(known.own_file):
        description = f"unit {PERSISTENCE_UNIT} {'made' if lines else 'removed'}"
        yield change_files(description, {PERSISTENCE_FILE: (known.own_file, lines)})
    state = record.services.unit(unit) if unit else None
    if unit and (state is None or state.enabled in {"", "disabled"}):
        yield change(f"persistence mode at every boot, by {unit}", exclusively(f"{PATH}; {_enable(unit)}"))
    if unit and record.driver.loaded and (state is None or state.active != "active"):
        yield change(f"persistence mode on, by {unit}", f"{PATH} systemctl start {unit}")


def _without_comments(lines: FileLines) -> FileLines:
    return lines and tuple(line for line in lines if not line.startswith("#"))


def _unit(record: HostRecord) -> str:
    """Return the unit for persistence mode: NVIDIA's daemon unless that turns it off, else gpu-provision's own.

    Empty if there is neither the daemon nor nvidia-smi, or no systemd to run a unit.
    """
    if record.persistence.no_systemd:
        return ""
    daemon = record.services.unit(DAEMON)
    if daemon and daemon.enabled != "masked" and not record.persistence.daemon_off:
        return DAEMON
    return PERSISTENCE_UNIT if PROGRAM in record.driver.programs else ""


def _enable(unit: str) -> str:
    """Return the shell command that enables a unit and records that. systemd reloads no other unit."""
    listed = f"touch {ENABLED_FILE} && {{ grep -qx {unit} {ENABLED_FILE} || echo {unit} >>{ENABLED_FILE}; }}"
    return f"mkdir -p {HOME} && {listed} && systemctl --quiet --no-reload enable {unit}"


def disable(units: Sequence[str]) -> str:
    """Return the shell command that disables units that we enabled; one that is gone needs none."""
    fresh = f"{ENABLED_FILE}.new"
    return (
        f'for unit in {shlex.join(units)}; do systemctl --quiet --no-reload disable -- "$unit" || :;'
        f' grep -vxF -e "$unit" {ENABLED_FILE} >{fresh} || :; mv -f {fresh} {ENABLED_FILE}; done'
    )


@host_operation
def persistence_mode(on: bool = True, expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Keep a host's own driver initialized, now and at every boot; or no longer, as far as that was our doing.

    A driver that a container has brought is left to it.
    """
    record = require_host(("system", "kernel", "driver", "services", "persistence"))
    wanted = on and has_own_driver(record, expected)
    if wanted and not _unit(record):
        why = f"no usable {DAEMON}.service, no {PROGRAM}"
        fix = "install the driver's own programs (Ubuntu: nvidia-utils-BRANCH-server; RHEL: nvidia-persistenced)"
        if record.persistence.no_systemd:
            why = "systemd does not run here"
            fix = f"have what starts this host's services run {PROGRAM} -pm 1 at boot"
        add_finding(
            Finding(
                code=codes.NO_PERSISTENCE,
                what="the host's driver cannot be kept initialized",
                where=host.name,
                evidence=f"driver {record.driver.version or 'of unknown version'}; {why}",
                consequence="the first process that uses an idle GPU waits for seconds",
                fix=f"{fix}, or host_prerequisites: {{persistence_mode: false}}",
                severity=Severity.WARNING,
            )
        )
    yield from make_changes(persistence_changes(record, on=wanted), "services", "persistence", "originals")


def has_own_driver(record: HostRecord, expected: Mapping[str, Any] | None) -> bool:
    """Return whether a host has a driver of its own, and its GPUs are used through it."""
    by_container = expected is not None and resolve_driver(Expectation.of(expected), record).driver_container
    return record.driver.on_host and not record.driver.in_container and not by_container
