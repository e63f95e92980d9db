"""Persistence mode of a host's own driver, decided from the host's record alone.

Without it the driver releases a GPU whenever no process uses it, and takes seconds to have it again. A driver container
starts NVIDIA's daemon by itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from gpu_provision.hosts import codes
from gpu_provision.hosts.checks.judge import resolve_driver
from gpu_provision.hosts.facts.driver import DAEMON
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.parser import FileLines
from gpu_provision.hosts.findings import (
    PATH,
    Commands,
    add_finding,
    host_operation,
    record_changes,
    show_diff,
)
from gpu_provision.hosts.gpu_host import require_host
from gpu_provision.hosts.operations.backups import exclusively, write_with_backup
from gpu_provision.hosts.paths import (
    ENABLED_FILE,
    HOME,
    PERSISTENCE_FILE,
    PERSISTENCE_UNIT,
)
from gpu_provision.model.expectation import Expectation
from gpu_provision.model.findings import Finding, Severity

PROGRAM = "/usr/bin/nvidia-smi"


UNIT_LINES = (
    "# Written by gpu-provision: the driver stays initialized while nobody uses the GPUs.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceChanges:
    """What is missing.

    Attributes:
        file: What our own unit shall hold; None for no file.
        file_differs: Whether it holds something else.
        disable: Units that we enabled and that are not to be any more.
        enable: The unit to enable; empty for none.
        start: The unit to start; empty for none.
    """

    file: FileLines = None
    file_differs: bool = False
    disable: tuple[str, ...] = ()
    enable: str = ""
    start: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Every change in words; empty for none."""
        changes = (
            (bool(self.disable), f"units disabled: {', '.join(self.disable)}"),
            (self.file_differs, f"unit {PERSISTENCE_UNIT} {'made' if self.file else 'removed'}"),
            (bool(self.enable), f"persistence mode at every boot, by {self.enable}"),
            (bool(self.start), f"persistence mode on, by {self.start}"),
        )
        return tuple(words for applies, words in changes if applies)


def persistence_changes(record: HostRecord, *, on: bool) -> PersistenceChanges:
    """Return what is missing; what others have enabled stays as it is."""
    unit = persistence_unit(record) if on else ""
    file = UNIT_LINES if unit == PERSISTENCE_UNIT else None
    state = record.services.unit(unit) if unit else None
    return PersistenceChanges(
        file=file,
        file_differs=file != record.persistence.own_file,
        disable=tuple(name for name in record.persistence.enabled if name != unit),
        enable=unit if unit and (state is None or state.enabled in {"", "disabled"}) else "",
        start=unit if unit and record.driver.loaded and (state is None or state.active != "active") else "",
    )


def persistence_unit(record: HostRecord) -> str:
    """Return what has persistence mode on: NVIDIA's daemon unless it is told not to, else a unit of ours.

    Empty if there is neither the daemon nor nvidia-smi, or no systemd to run a unit.
    """
    if record.persistence.no_systemd:
        return ""
    daemon = record.services.unit(DAEMON)
    if daemon and daemon.enabled != "masked" and not record.persistence.daemon_off:
        return DAEMON
    return PERSISTENCE_UNIT if PROGRAM in record.driver.programs else ""


def enable(unit: str) -> str:
    """Return the shell command that enables a unit and writes down that we did. systemd reads no other unit anew."""
    listed = f"touch {ENABLED_FILE} && {{ grep -qx {unit} {ENABLED_FILE} || echo {unit} >>{ENABLED_FILE}; }}"
    return f"mkdir -p {HOME} && {listed} && systemctl --quiet --no-reload enable {unit}"


def disable(units: tuple[str, ...]) -> str:
    """Return the shell command that disables units that we enabled; one that is gone needs none."""
    fresh = f"{ENABLED_FILE}.new"
    return (
        f'for unit in {shlex.join(units)}; do systemctl --quiet --no-reload disable -- "$unit" || :;'
        f' grep -vxF -e "$unit" {ENABLED_FILE} >{fresh} || :; mv -f {fresh} {ENABLED_FILE}; done'
    )


def no_persistence(record: HostRecord, host: str) -> Finding:
    """Return the warning about a driver that nothing here can keep initialized."""
    why = f"no usable {DAEMON}.service, no {PROGRAM}"
    fix = "install the driver's own programs (Ubuntu: nvidia-utils-BRANCH-server; RHEL: nvidia-persistenced)"
    if record.persistence.no_systemd:
        why, fix = "systemd does not run here", f"have what starts this host's services run {PROGRAM} -pm 1 at boot"
    return Finding(
        code=codes.NO_PERSISTENCE,
        what="the host's driver cannot be kept initialized",
        where=host,
        evidence=f"driver {record.driver.version or 'of unknown version'}; {why}",
        consequence="whoever asks for a GPU first waits for seconds, each time that nobody has used it",
        fix=f"{fix}, or host_prerequisites: {{persistence_mode: false}}",
        severity=Severity.WARNING,
    )


@host_operation
def persistence_mode(on: bool = True, expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Keep a host's own driver initialized, now and at every boot; or no longer, as far as that was our doing.

    A driver that a container has brought is left to it.

    Args:
        on: False takes back what we have enabled.
        expected: What the inventory expects of this machine, as for ``preflight``; None without one.
    """
    record = require_host(("system", "kernel", "driver", "services", "persistence"))
    wanted = on and has_own_driver(record, expected)
    if wanted and not persistence_unit(record):
        add_finding(no_persistence(record, host.name))
    changes = persistence_changes(record, on=wanted)
    record_changes(changes.words, "services", "persistence", "originals")
    show_diff(PERSISTENCE_FILE, record.persistence.own_file, changes.file)
    if changes.disable:
        yield StringCommand(exclusively(f"{PATH}; {disable(changes.disable)}"))
    if changes.file_differs:
        yield write_with_backup(PERSISTENCE_FILE, changes.file)
    if changes.enable:
        yield StringCommand(exclusively(f"{PATH}; {enable(changes.enable)}"))
    if changes.start:
        yield StringCommand(f"{PATH} systemctl start {changes.start}")


def has_own_driver(record: HostRecord, expected: Mapping[str, Any] | None) -> bool:
    """Return whether a host has a driver of its own, and its GPUs are to be used through it."""
    by_container = expected is not None and resolve_driver(Expectation.of(expected), record).driver_container
    return record.driver.on_host and not record.driver.in_container and not by_container
