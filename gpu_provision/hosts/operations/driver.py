"""pyinfra operations for a driver that is the host's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.hosts.changes import headers, modules
from gpu_provision.hosts.changes.persistence import (
    disable,
    enable,
    no_way,
    persistence_changes,
    unit_of,
)
from gpu_provision.hosts.checks.judge import decided
from gpu_provision.hosts.facts.driver import OWN_FILE
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.findings import Commands, add_finding, fail, record_changes, show_diff
from gpu_provision.hosts.gpu_host import read_host
from gpu_provision.hosts.operations.backups import alone, put
from gpu_provision.hosts.operations.modules import PATH
from gpu_provision.model.hosts import Expectation


@operation()
def persistence_mode(on: bool = True, expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Keep a host's own driver initialized, now and at every boot; or no longer, as far as that was our doing.

    A driver that a container has brought is left to it.

    Args:
        on: False takes back what we have enabled.
        expected: What the inventory expects of this machine, as for ``preflight``; None without one.
    """
    record = read_host(("system", "kernel", "driver", "services", "persistence"))
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    wanted = on and has_own_driver(record, expected)
    if wanted and not unit_of(record):
        add_finding(no_way(record, host.name))
    changes = persistence_changes(record, on=wanted)
    record_changes(changes.words, "services", "persistence", "originals")
    show_diff(OWN_FILE, record.persistence.own_file, changes.file)
    if changes.disable:
        yield StringCommand(alone(f"{PATH}; {disable(changes.disable)}"))
    if changes.file_differs:
        yield put(OWN_FILE, changes.file)
    if changes.enable:
        yield StringCommand(alone(f"{PATH}; {enable(changes.enable)}"))
    if changes.start:
        yield StringCommand(f"{PATH} systemctl start {changes.start}")


class InstallLog(FactBase[list[str]]):
    """What the package manager printed when it installed headers."""

    def command(self) -> str:
        """Return the shell command."""
        return f"tail -n 20 {headers.LOG} || :"

    @staticmethod
    def default() -> list[str]:
        """Return nothing."""
        return []

    def process(self, output: list[str]) -> list[str]:
        """Return the lines."""
        return output


@operation()
def kernel_headers(mode: bool | str = "auto", expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001 - as above
    """Have headers of the running kernel, and of the one that boots next, where the driver is compiled on the host.

    Installed by the host's package manager in the kernel's exact version. A driver container brings its own.

    Args:
        mode: ``auto``: where the host has a driver of its own, by DKMS or NVIDIA's installer; True: in any case;
            False: nowhere. Headers that are there stay.
        expected: What the inventory expects of this machine, as for ``preflight``; None without one.
    """
    record = read_host(("system", "kernel", "kernels", "packages", "driver", "holds"))
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    compiled = headers.is_compiled_here(record) and has_own_driver(record, expected)
    wanted = mode is True or (mode == "auto" and compiled)
    changes = headers.header_changes(record) if wanted else headers.HeaderChanges()
    if len(changes.packages) < len(changes.kernels):
        yield from fail(headers.no_tool(record, host.name, changes.kernels))
        return
    record_changes(changes.words, "system", "kernels", "packages", "holds", "originals")
    if not changes.kernels:
        return
    yield StringCommand(alone(f"{PATH}; {headers.install(changes)}"))
    after = read_host(("kernel", "kernels")) if state.is_executing else None
    missing = [release for release in changes.kernels if after and release not in after.kernels.with_headers]
    if missing:
        log: list[str] = host.get_fact(InstallLog)
        yield from fail(headers.not_there(changes, host.name, missing, log))


def has_own_driver(record: HostRecord, expected: Mapping[str, Any] | None) -> bool:
    """Return whether a host has a driver of its own, and its GPUs are to be used through it."""
    by_container = expected is not None and decided(Expectation.of(expected), record).driver_container
    return record.driver.on_host and not record.driver.in_container and not by_container
