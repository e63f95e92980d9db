"""Limits that containers begin with, decided from a host's record alone.

Kubernetes sets no limits: a container has those of its runtime's process, which has them from its unit. What stands in
/etc/security/limits.d counts for people who log in, and for no container.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts.parser import FileLines
from gpu_provision.hosts.facts.runtime import (
    UNLIMITED,
    ProcessLimits,
    RuntimeLimits,
)
from gpu_provision.hosts.facts.system import Settings
from gpu_provision.hosts.findings import (
    PATH,
    Commands,
    host_operation,
)
from gpu_provision.hosts.gpu_host import require_host
from gpu_provision.hosts.operations.backups import HostChange, change, change_files, make_changes
from gpu_provision.hosts.paths import (
    LIMITS_DROP_IN,
    LINKS_RULE,
    LINKS_SCRIPT,
    SYSCTL_FILE,
    UNIT_DIRECTORY,
)
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailed

LIMITS_HEADER = "# Written by gpu-provision: limits that containers begin with."


_FACTORS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def limit_changes(known: RuntimeLimits, limits: Mapping[str, str]) -> Iterator[HostChange]:
    """Yield what is missing; nothing is restarted."""
    wanted = {name: value_of(text) for name, text in limits.items()}
    runtimes = [runtime for runtime in known.runtimes if runtime.unit]
    for runtime in runtimes:
        others = {name: value for name, value in wanted.items() if runtime.limits.get(name) != (value, value)}
        if others:
            values = ", ".join(f"{name}={value}" for name, value in others.items())
            yield change(f"limits of {runtime.name} set: {values}", f"{PATH} {limit_command(runtime, others)}")
    units = {runtime.unit for runtime in runtimes} if wanted else set()
    lines = _limit_lines(wanted)
    goal = {path: lines if _unit(path) in units else None for path in sorted({*known.files, *map(_drop_in, units)})}
    for description, paths in (
        ("limits kept for the boot", [path for path in goal if goal[path] and known.files.get(path) != goal[path]]),
        ("limits no longer kept for the boot", [path for path in goal if not goal[path]]),
    ):
        if paths:
            files = {path: (known.files.get(path), goal[path]) for path in paths}
            yield change_files(f"{description}: {', '.join(map(_unit, paths))}", files)


def value_of(text: str) -> str:
    """Return a limit as the kernel prints it: ``unlimited``, or a number of bytes or whatever is limited."""
    factor = _FACTORS.get(text[-2:])
    return str(int(text[:-2]) * factor) if factor else text


def _limit_lines(wanted: Mapping[str, str]) -> FileLines:
    """Return the drop-in of a unit, in systemd's words."""
    settings = (f"Limit{name.upper()}={value.replace(UNLIMITED, 'infinity')}" for name, value in wanted.items())
    return (LIMITS_HEADER, "[Service]", *settings)


def _drop_in(unit: str) -> str:
    return f"{UNIT_DIRECTORY}/{unit}.d/{LIMITS_DROP_IN}"


def _unit(path: str) -> str:
    return path.removeprefix(f"{UNIT_DIRECTORY}/").partition(".d/")[0]


def limit_command(runtime: ProcessLimits, limits: Mapping[str, str]) -> str:
    """Return the shell command that gives a running process limits, and with it all containers from now on."""
    options = (f"--{name}={value}:{value}" for name, value in limits.items())
    return shlex.join(["prlimit", "--pid", str(runtime.pid), *options])


def no_runtime_unit(host: str, runtimes: tuple[ProcessLimits, ...]) -> Finding:
    """Return the error about container runtimes that no unit starts, or that do not run."""
    seen = ", ".join(f"{runtime.name}[{runtime.pid}]" for runtime in runtimes)
    return Finding(
        code=codes.NO_RUNTIME_UNIT,
        what="limits cannot be set: no unit of systemd runs a container runtime here",
        where=host,
        evidence=f"{seen} without a unit" if seen else "no process containerd, crio or dockerd",
        fix="systemctl start containerd, or take limits off host_prerequisites for this node",
    )


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
    """Yield what is missing.

    Args:
        known: What there is.
        sysctls: Kernel parameters by name.
        links: Whether links in /dev/char are made whenever a driver loads.
    """
    running = {key: value for key, value in sysctls.items() if known.running.get(key) != _normal(value)}
    if running:
        values = ", ".join(f"{key}={value}" for key, value in running.items())
        yield change(f"kernel parameters set: {values}", sysctl_command(running))
    lines = sysctl_lines(sysctls)
    if files := _differing(known, {SYSCTL_FILE: lines}):
        yield change_files(f"kernel parameters {'kept' if lines else 'no longer kept'} for the boot", files)
    script, rule = (_LINKS_LINES, _RULE_LINES) if links else (None, None)
    if files := _differing(known, {LINKS_SCRIPT: script, LINKS_RULE: rule}):
        reload = [f"{PATH}; ! command -v udevadm >/dev/null || udevadm control --reload || :"]
        link = [f"sh {LINKS_SCRIPT}"] if links and LINKS_SCRIPT in files and known.driver_loaded else []
        description = "GPUs linked in /dev/char" if links else "GPUs no longer linked in /dev/char"
        yield change_files(description, files, *(reload if LINKS_RULE in files else []), *link)


def _differing(known: Settings, wanted: Mapping[str, FileLines]) -> dict[str, tuple[FileLines, FileLines]]:
    found = ((path, known.files.get(path), lines) for path, lines in wanted.items())
    return {path: (old, lines) for path, old, lines in found if old != lines}


def sysctl_lines(sysctls: Mapping[str, str]) -> FileLines:
    """Return our file of kernel parameters; None for none."""
    return (SYSCTL_HEADER, *(f"{key} = {value}" for key, value in sysctls.items())) if sysctls else None


def sysctl_command(sysctls: Mapping[str, str]) -> str:
    """Return the shell command that sets kernel parameters; it fails with the name of one that does not exist."""
    return " && ".join(_set_sysctl(key, value) for key, value in sysctls.items())


def _set_sysctl(key: str, value: str) -> str:
    path = shlex.quote(f"/proc/sys/{key.replace('.', '/')}")
    missing = shlex.quote(f"this kernel has no parameter {key}")
    return f"{{ [ -e {path} ] || {{ echo {missing} >&2; false; }}; }} && printf '%s\\n' {shlex.quote(value)} >{path}"


def _normal(value: str) -> str:
    return " ".join(value.split())


@host_operation
def system_settings(sysctls: Mapping[str, str], dev_char_symlinks: bool = False) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Have kernel parameters set, and GPUs linked by their numbers, now and at every boot.

    What is no longer declared is no longer kept for the boot; what it has set stays until then.

    Args:
        sysctls: Kernel parameters by name: ``{"vm.max_map_count": "262144"}``.
        dev_char_symlinks: Whether a udev rule links GPUs in /dev/char whenever a driver loads.
    """
    record = require_host(("system", "kernel", "settings"))
    changes = settings_changes(record.settings, sysctls=sysctls, links=dev_char_symlinks)
    yield from make_changes(changes, "settings", "originals")


@host_operation
def limits(values: Mapping[str, str], reload: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have containers begin with limits, by those of their runtime: of its process now, of its unit from then on.

    Nothing is restarted: containers that are there keep theirs. Limits that are no longer declared stay in force until
    the runtime restarts.

    Args:
        values: Limits by name: ``{"memlock": "unlimited", "stack": "64Mi"}``.
        reload: Whether systemd reads its units at once; otherwise it does so at its next reload.
    """
    record = require_host(("system", "kernel", "limits"))
    runtimes = record.limits.runtimes
    if values and not any(runtime.unit for runtime in runtimes):
        raise RunFailed(no_runtime_unit(host.name, runtimes))
    changes = list(limit_changes(record.limits, values))
    yield from make_changes(changes, "limits", "originals")
    if reload and any(each.files for each in changes):
        yield StringCommand(f"{PATH} systemctl daemon-reload")
