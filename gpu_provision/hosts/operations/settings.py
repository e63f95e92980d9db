"""Kernel parameters, limits of containers and huge pages, decided from a host's record alone.

Kubernetes sets no limits: a container has those of its runtime's process, which has them from its unit. What stands in
/etc/security/limits.d counts for people who log in, and for no container.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from pyinfra.api.command import StringCommand
from pyinfra.context import host, state

from gpu_provision.hosts import errors, scripts
from gpu_provision.hosts.facts import FileLines
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.runtime import RuntimeLimits
from gpu_provision.hosts.facts.system import Settings, kilobytes
from gpu_provision.hosts.operations import (
    PATH,
    Commands,
    add_finding,
    add_warning,
    fail_host,
    host_operation,
    read_host,
    require_host,
    run_of,
)
from gpu_provision.hosts.operations.backups import HostChange, change, change_files, make_changes
from gpu_provision.hosts.operations.reboot import reboot_needed
from gpu_provision.hosts.scripts import (
    HUGEPAGES_FILE,
    LIMITS_DROP_IN,
    LINKS_RULE,
    LINKS_SCRIPT,
    SYSCTL_FILE,
    UNIT_DIRECTORY,
)
from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.model.hosts import limit_values, unit_limits

HEADER = "# Written by gpu-provision: huge pages, reserved before anything has taken the memory to pieces."

MAX_MEMORY_SHARE = 0.9
"""Part of the memory that huge pages may take: a host without the rest does nothing any more."""

KUBELET = "kubelet"
"""The one unit with a kubelet in it that is restarted: those of k3s and others run more than a kubelet."""

_GIB = 1 << 30

_POOLS = "/sys/kernel/mm/hugepages"


def hugepage_changes(record: HostFacts, wanted: Mapping[str, int]) -> Iterator[HostChange]:
    """Yield what is missing. What the kernel found no room for is not asked for again before the next boot."""
    known = record.hugepages
    largest_first = sorted(wanted, key=kilobytes, reverse=True)  # they find room the hardest
    lacking = [size for size in largest_first if size in known.pages and known.pages[size] != wanted[size]]
    reserve = {size: wanted[size] for size in lacking if not _found_no_room(record, size, wanted[size])}
    if reserve:
        pages = ", ".join(f"{count} x {size} ({known.pages[size]} before)" for size, count in reserve.items())
        yield change(f"huge pages reserved: {pages}", reserve_now(reserve))
    # lines of systemd-tmpfiles that write a number of pages
    lines = (HEADER, *(f"w {_pool(size)} - - - - {wanted[size]}" for size in largest_first)) if wanted else None
    if lines != known.own_file:
        description = f"huge pages {'kept' if lines else 'no longer kept'} for the boot"
        yield change_files(description, {HUGEPAGES_FILE: (known.own_file, lines)})
    if (reserve or known.unaware) and record.services.is_active(KUBELET):
        yield change("kubelet restarted, to count huge pages", f"{PATH} systemctl restart {KUBELET}")


def shortages(record: HostFacts, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """Return why this host needs a reboot: what the kernel found no room for since the last one."""
    lacking = (size for size in wanted if _found_no_room(record, size, wanted[size]))
    return tuple(
        f"memory is in pieces: room for {record.hugepages.pages[size]} of {wanted[size]} huge pages of {size};"
        " the next boot reserves them early"
        for size in lacking
    )


def _found_no_room(record: HostFacts, size: str, count: int) -> bool:
    """Return whether this very number was asked for since the boot, and there is what was got then."""
    there = record.hugepages.pages.get(size, count)
    return there < count and record.hugepages.attempts.get(size) == (count, there)


def _pool(size: str) -> str:
    return f"{_POOLS}/hugepages-{kilobytes(size)}kB/nr_hugepages"


def reserve_now(reserve: Mapping[str, int]) -> str:
    """Return the shell command that reserves pages, as many as there is room for, and remembers how many that was."""
    calls = (shlex.join(["reserve", size, str(count), _pool(size)]) for size, count in reserve.items())
    return scripts.assign() + scripts.load("reserve.sh") + " &&\n".join(calls)


def hugepages_finding(record: HostFacts, host: str, wanted: Mapping[str, int]) -> Finding | None:
    """Return the error about huge pages that no boot would bring; None if they are possible."""
    known = record.hugepages
    unknown = [size for size in wanted if size not in known.pages]
    if unknown:
        has = ", ".join(known.pages) or "nothing"
        return errors.finding("hugepages.unknown", host, sizes=", ".join(unknown), known=has)
    taken = sum(kilobytes(size) * 1024 * count for size, count in wanted.items())
    if known.memory and taken > MAX_MEMORY_SHARE * known.memory:
        memory = known.memory / _GIB
        return errors.finding("hugepages.too_many", host, taken=taken / _GIB, memory=memory, most=MAX_MEMORY_SHARE)
    return None


_HUGEPAGES = ("system", "kernel", "kubernetes", "services", "hugepages")


@host_operation
def hugepages(counts: Mapping[str, int]) -> Commands:
    """Have huge pages reserved, now and at every boot, and the kubelet count them.

    Number of pages by size: ``{"2Mi": 1024, "1Gi": 16}``. Where memory is in pieces, the kernel finds room for fewer:
    that is reported as "reboot needed", since the boot reserves them first. What is no longer declared stays until
    the next boot.
    """
    record = require_host(_HUGEPAGES)
    refused = hugepages_finding(record, host.name, counts)
    if refused:
        raise RunFailedError(refused)
    changes = list(hugepage_changes(record, counts))
    yield from make_changes(changes, "hugepages", "services", "kubernetes", "originals")
    after = read_host(_HUGEPAGES) if changes and state.is_executing else record
    after = after or record
    if reasons := shortages(after, counts):
        add_finding(reboot_needed(host.name, reasons))
        kept = run_of(host).reboot_reasons
        kept += [reason for reason in reasons if reason not in kept]
    if after.hugepages.unaware and not after.services.is_active(KUBELET):  # it is not ours to restart
        units = " or ".join(after.kubernetes.paths.units)
        add_warning("hugepages.unaware", ", ".join(after.hugepages.unaware), units=units)


LIMITS_HEADER = "# Written by gpu-provision: limits that containers begin with."


def limit_changes(known: RuntimeLimits, limits: Mapping[str, str]) -> Iterator[HostChange]:
    """Yield what is missing; nothing is restarted."""
    wanted = limit_values(limits)
    runtimes = [runtime for runtime in known.runtimes if runtime.unit]
    for runtime in runtimes:
        others = {name: value for name, value in wanted.items() if runtime.limits.get(name) != (value, value)}
        if others:
            values = ", ".join(f"{name}={value}" for name, value in others.items())
            # with those of the running process all containers have them from now on
            options = [f"--{name}={value}:{value}" for name, value in others.items()]
            command = shlex.join(["prlimit", "--pid", str(runtime.pid), *options])
            yield change(f"limits of {runtime.name} set: {values}", f"{PATH} {command}")
    units = {runtime.unit for runtime in runtimes} if wanted else set()
    lines = (LIMITS_HEADER, "[Service]", *unit_limits(limits))
    drop_ins = {f"{UNIT_DIRECTORY}/{unit}.d/{LIMITS_DROP_IN}" for unit in units}
    goal = {path: lines if path in drop_ins else None for path in sorted({*known.files, *drop_ins})}
    for description, paths in (
        ("limits kept for the boot", [path for path in goal if goal[path] and known.files.get(path) != goal[path]]),
        ("limits no longer kept for the boot", [path for path in goal if not goal[path]]),
    ):
        if paths:
            files = {path: (known.files.get(path), goal[path]) for path in paths}
            yield change_files(f"{description}: {', '.join(map(_unit, paths))}", files)


def _unit(path: str) -> str:
    return path.removeprefix(f"{UNIT_DIRECTORY}/").partition(".d/")[0]


SYSCTL_HEADER = "# Written by gpu-provision: kernel parameters that GPU nodes need."

# udev hears of the driver before it has registered its majors: hence the script waits until it has.
_LINKS_LINES = tuple(scripts.load("links.sh").splitlines())

_RULE_LINES = (
    "# Written by gpu-provision: see the script.",
    *(
        f'ACTION=="add", DEVPATH=="{path}", RUN+="/bin/sh {LINKS_SCRIPT}"'
        for path in ("/bus/pci/drivers/nvidia", "/module/nvidia_uvm")
    ),
)


def settings_changes(known: Settings, *, sysctls: Mapping[str, str], links: bool) -> Iterator[HostChange]:
    """Yield what is missing of kernel parameters, and of links in /dev/char that are made whenever a driver loads."""
    running = {key: value for key, value in sysctls.items() if known.running.get(key) != " ".join(value.split())}
    if running:
        values = ", ".join(f"{key}={value}" for key, value in running.items())
        yield change(f"kernel parameters set: {values}", sysctl_command(running))
    lines = (SYSCTL_HEADER, *(f"{key} = {value}" for key, value in sysctls.items())) if sysctls else None
    if files := _find_differing(known, {SYSCTL_FILE: lines}):
        yield change_files(f"kernel parameters {'kept' if lines else 'no longer kept'} for the boot", files)
    script, rule = (_LINKS_LINES, _RULE_LINES) if links else (None, None)
    if files := _find_differing(known, {LINKS_SCRIPT: script, LINKS_RULE: rule}):
        reload = [f"{PATH}; ! command -v udevadm >/dev/null || udevadm control --reload || :"]
        link = [f"sh {LINKS_SCRIPT}"] if links and LINKS_SCRIPT in files and known.driver_loaded else []
        description = "GPUs linked in /dev/char" if links else "GPUs no longer linked in /dev/char"
        yield change_files(description, files, *(reload if LINKS_RULE in files else []), *link)


def _find_differing(known: Settings, wanted: Mapping[str, FileLines]) -> dict[str, tuple[FileLines, FileLines]]:
    found = ((path, known.files.get(path), lines) for path, lines in wanted.items())
    return {path: (old, lines) for path, old, lines in found if old != lines}


def sysctl_command(sysctls: Mapping[str, str]) -> str:
    """Return the shell command that sets kernel parameters; it fails with the name of one that does not exist."""
    commands = []
    for key, value in sysctls.items():
        path = shlex.quote(f"/proc/sys/{key.replace('.', '/')}")
        exists = f"[ -e {path} ] || {{ echo {shlex.quote(f'this kernel has no parameter {key}')} >&2; false; }}"
        commands.append(f"{{ {exists}; }} && printf '%s\\n' {shlex.quote(value)} >{path}")
    return " && ".join(commands)


@host_operation
def system_settings(sysctls: Mapping[str, str], dev_char_symlinks: bool = False) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Have kernel parameters set, and GPUs linked by their numbers, now and at every boot.

    What is no longer declared is no longer kept for the boot; what it has set stays until then.
    """
    record = require_host(("system", "kernel", "settings"))
    changes = settings_changes(record.settings, sysctls=sysctls, links=dev_char_symlinks)
    yield from make_changes(changes, "settings", "originals")


@host_operation
def limits(values: Mapping[str, str], reload: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have containers begin with limits, by those of their runtime: of its process now, of its unit from then on.

    Limits by name: ``{"memlock": "unlimited", "stack": "64Mi"}``. Nothing is restarted: containers that are there keep
    theirs. Limits that are no longer declared stay in force until the runtime restarts.
    """
    record = require_host(("system", "kernel", "limits"))
    runtimes = record.limits.runtimes
    if values and not any(runtime.unit for runtime in runtimes):
        seen = ", ".join(f"{runtime.name}[{runtime.pid}]" for runtime in runtimes)
        fail_host("limits", f"{seen} without a unit" if seen else "no process containerd, crio or dockerd")
    changes = list(limit_changes(record.limits, values))
    yield from make_changes(changes, "limits", "originals")
    if reload and any(each.files for each in changes):
        yield StringCommand(f"{PATH} systemctl daemon-reload")
