"""pyinfra operations for what workloads take from a host: huge pages and limits."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.hosts.changes import modules
from gpu_provision.hosts.changes.hugepages import (
    KUBELET,
    hugepage_changes,
    impossible,
    kubelet_unaware,
    reserve_now,
    short,
)
from gpu_provision.hosts.changes.limits import limit_changes, no_unit, set_now
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.storage import OWN_FILE
from gpu_provision.hosts.findings import Commands, add_finding, fail, needs_reboot, record_changes, show_diff
from gpu_provision.hosts.gpu_host import read_host
from gpu_provision.hosts.operations.backups import put
from gpu_provision.hosts.operations.modules import PATH

_HUGEPAGES = ("system", "kernel", "kubernetes", "services", "hugepages")


@operation()
def hugepages(counts: Mapping[str, int]) -> Commands:
    """Have huge pages reserved, now and at every boot, and the kubelet count them.

    Where memory is in pieces, the kernel finds room for fewer: that is reported as "reboot needed", since the boot
    reserves them first. What is no longer declared stays until the next boot.

    Args:
        counts: Number of pages by size: ``{"2Mi": 1024, "1Gi": 16}``.
    """
    record = read_host(_HUGEPAGES)
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    refused = impossible(record, host.name, counts)
    if refused:
        yield from fail(refused)
        return
    changes = hugepage_changes(record, counts)
    record_changes(changes.words, "hugepages", "services", "kubernetes", "originals")
    show_diff(OWN_FILE, record.hugepages.own_file, changes.file)
    if changes.reserve:
        yield StringCommand(reserve_now(changes.reserve))
    if changes.file_differs:
        yield put(OWN_FILE, changes.file)
    if changes.restart:
        yield StringCommand(f"{PATH} systemctl restart {KUBELET}")
    after = read_host(_HUGEPAGES) if changes.reserve and state.is_executing else record
    _tell_what_is_left(after or record, counts)


def _tell_what_is_left(record: HostRecord, counts: Mapping[str, int]) -> None:
    reasons = short(record, counts)
    if reasons:
        add_finding(modules.reboot_needed(host.name, reasons))
        needs_reboot(*reasons)
    if record.hugepages.unaware and not record.services.is_active(KUBELET):
        add_finding(kubelet_unaware(host.name, record.hugepages.unaware, record.kubernetes.places.units))


@operation()
def limits(values: Mapping[str, str], reload: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have containers begin with limits, by those of their runtime: of its process now, of its unit from then on.

    Nothing is restarted: containers that are there keep theirs. Limits that are no longer declared stay in force until
    the runtime starts anew.

    Args:
        values: Limits by name: ``{"memlock": "unlimited", "stack": "64Mi"}``.
        reload: Whether systemd reads its units at once; otherwise it does so at its next reload.
    """
    record = read_host(("system", "kernel", "limits"))
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    runtimes = record.limits.runtimes
    if values and not any(runtime.unit for runtime in runtimes):
        yield from fail(no_unit(host.name, runtimes))
        return
    changes = limit_changes(record.limits, values)
    record_changes(changes.words, "limits", "originals")
    for path, lines in changes.files.items():
        show_diff(path, record.limits.files.get(path), lines)
    for path, lines in changes.files.items():
        yield put(path, lines)
    if changes.files and reload:
        yield StringCommand(f"{PATH} systemctl daemon-reload")
    for runtime, others in changes.running:
        yield StringCommand(f"{PATH} {set_now(runtime, others)}")
