"""Huge pages that are reserved now and at every boot, decided from a host's record alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from pyinfra.context import host, state

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.storage import kilobytes
from gpu_provision.hosts.findings import (
    PATH,
    Commands,
    add_finding,
    host_operation,
    needs_reboot,
)
from gpu_provision.hosts.gpu_host import read_host, require_host
from gpu_provision.hosts.operations.backups import HostChange, change, change_files, make_changes
from gpu_provision.hosts.operations.reboot_rules import reboot_needed
from gpu_provision.hosts.paths import (
    HUGEPAGES_FILE,
)
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailed, Severity

HEADER = "# Written by gpu-provision: huge pages, reserved before anything has taken the memory to pieces."


MOST = 0.9
"""Part of the memory that huge pages may take: a host without the rest does nothing any more."""


KUBELET = "kubelet"
"""The one unit with a kubelet in it that is restarted: those of k3s and others run more than a kubelet."""


_GIB = 1 << 30
_POOLS = "/sys/kernel/mm/hugepages"


def hugepage_changes(record: HostRecord, wanted: Mapping[str, int]) -> Iterator[HostChange]:
    """Yield what is missing. What the kernel found no room for is not asked for again before the next boot."""
    known = record.hugepages
    largest_first = sorted(wanted, key=kilobytes, reverse=True)  # they find room the hardest
    lacking = [size for size in largest_first if size in known.pages and known.pages[size] != wanted[size]]
    reserve = {size: wanted[size] for size in lacking if not _found_no_room(record, size, wanted[size])}
    if reserve:
        pages = ", ".join(f"{count} x {size} ({known.pages[size]} before)" for size, count in reserve.items())
        yield change(f"huge pages reserved: {pages}", reserve_now(reserve))
    lines = (HEADER, *(_line(size, wanted[size]) for size in largest_first)) if wanted else None
    if lines != known.own_file:
        description = f"huge pages {'kept' if lines else 'no longer kept'} for the boot"
        yield change_files(description, {HUGEPAGES_FILE: (known.own_file, lines)})
    if (reserve or known.unaware) and record.services.is_active(KUBELET):
        yield change("kubelet restarted, to count huge pages", f"{PATH} systemctl restart {KUBELET}")


def shortages(record: HostRecord, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """Return why this host needs a reboot: what the kernel found no room for since the last one."""
    lacking = (size for size in wanted if _found_no_room(record, size, wanted[size]))
    return tuple(
        f"memory is in pieces: room for {record.hugepages.pages[size]} of {wanted[size]} huge pages of {size};"
        " the next boot reserves them early"
        for size in lacking
    )


def _found_no_room(record: HostRecord, size: str, count: int) -> bool:
    """Return whether this very number was asked for since the boot, and there is what was got then."""
    there = record.hugepages.pages.get(size, count)
    return there < count and record.hugepages.attempts.get(size) == (count, there)


def _pool(size: str) -> str:
    return f"{_POOLS}/hugepages-{kilobytes(size)}kB/nr_hugepages"


def _line(size: str, count: int) -> str:
    """Return the line of systemd-tmpfiles that writes a number of pages."""
    return f"w {_pool(size)} - - - - {count}"


def reserve_now(reserve: Mapping[str, int]) -> str:
    """Return the shell command that reserves pages, as many as there is room for, and remembers how many that was."""
    calls = (shlex.join(["reserve", size, str(count), _pool(size)]) for size, count in reserve.items())
    return scripts.assign() + scripts.load("reserve.sh") + " &&\n".join(calls)


def impossible_hugepages(record: HostRecord, host: str, wanted: Mapping[str, int]) -> Finding | None:
    """Return the error about huge pages that no boot would bring; None if they are possible."""
    known = record.hugepages
    unknown = [size for size in wanted if size not in known.pages]
    if unknown:
        return _refused(
            f"this host has no huge pages of {', '.join(unknown)}",
            host,
            evidence=f"{_POOLS}: {', '.join(known.pages) or 'nothing'}",
            fix="declare sizes that it has; 1Gi needs a processor with the flag pdpe1gb",
        )
    taken = sum(kilobytes(size) * 1024 * count for size, count in wanted.items())
    if known.memory and taken > MOST * known.memory:
        return _refused(
            "the declared huge pages leave this host too little memory",
            host,
            evidence=f"{taken / _GIB:.1f} of {known.memory / _GIB:.1f} GiB (MemTotal)",
            fix=f"declare less than {MOST:.0%} of the memory as host_prerequisites.hugepages of this node or its pool",
        )
    return None


def _refused(what: str, host: str, *, evidence: str, fix: str) -> Finding:
    return Finding(code=codes.HUGEPAGES_IMPOSSIBLE, what=what, where=host, evidence=evidence, fix=fix)


def kubelet_unaware(host: str, kubelets: Sequence[str], units: Sequence[str]) -> Finding:
    """Return the warning about a kubelet that does not count the pages yet, and is not ours to restart."""
    return Finding(
        code=codes.KUBELET_UNAWARE,
        what="the kubelet counts huge pages when it starts, and has not started since their number changed",
        where=host,
        evidence=", ".join(kubelets),
        consequence="pods that ask for huge pages stay Pending",
        fix=f"systemctl restart {' or '.join(units)}",
        severity=Severity.WARNING,
    )


_HUGEPAGES = ("system", "kernel", "kubernetes", "services", "hugepages")


@host_operation
def hugepages(counts: Mapping[str, int]) -> Commands:
    """Have huge pages reserved, now and at every boot, and the kubelet count them.

    Where memory is in pieces, the kernel finds room for fewer: that is reported as "reboot needed", since the boot
    reserves them first. What is no longer declared stays until the next boot.

    Args:
        counts: Number of pages by size: ``{"2Mi": 1024, "1Gi": 16}``.
    """
    record = require_host(_HUGEPAGES)
    refused = impossible_hugepages(record, host.name, counts)
    if refused:
        raise RunFailed(refused)
    changes = list(hugepage_changes(record, counts))
    yield from make_changes(changes, "hugepages", "services", "kubernetes", "originals")
    after = read_host(_HUGEPAGES) if changes and state.is_executing else record
    _report_shortages(after or record, counts)


def _report_shortages(record: HostRecord, counts: Mapping[str, int]) -> None:
    reasons = shortages(record, counts)
    if reasons:
        add_finding(reboot_needed(host.name, reasons))
        needs_reboot(*reasons)
    if record.hugepages.unaware and not record.services.is_active(KUBELET):
        add_finding(kubelet_unaware(host.name, record.hugepages.unaware, record.kubernetes.places.units))
