"""Limits that containers begin with, decided from a host's record alone.

Kubernetes sets no limits: a container has those of its runtime's process, which has them from its unit. What stands in
/etc/security/limits.d counts for people who log in, and for no container.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from gpu_provision.hosts import codes, scripts
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
    record_changes,
    show_diff,
)
from gpu_provision.hosts.gpu_host import require_host
from gpu_provision.hosts.operations.backups import write_with_backup
from gpu_provision.hosts.paths import (
    LIMITS_DROP_IN,
    LINKS_RULE,
    LINKS_SCRIPT,
    SYSCTL_FILE,
    UNIT_DIRECTORY,
)
from gpu_provision.model.findings import Finding, RunFailed

LIMITS_HEADER = "# Written by gpu-provision: limits that containers begin with."


_FACTORS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChanges:
    """What is missing.

    Attributes:
        files: Path -> what it shall hold, of the drop-ins that hold something else; None for no file.
        running: Processes whose limits are others, each with those to set.
        words: Every change in words; empty for none.
    """

    files: Mapping[str, FileLines]
    running: tuple[tuple[ProcessLimits, Mapping[str, str]], ...]
    words: tuple[str, ...]


def limit_changes(known: RuntimeLimits, limits: Mapping[str, str]) -> LimitChanges:
    """Return what is missing."""
    wanted = {name: value_of(text) for name, text in limits.items()}
    units = {runtime.unit for runtime in known.runtimes if runtime.unit} if wanted else set()
    lines = _limit_lines(wanted)
    paths = sorted({*known.files, *map(_drop_in, units)})
    goal = {path: lines if _unit(path) in units else None for path in paths}
    files = {path: content for path, content in goal.items() if known.files.get(path) != content}
    running = tuple(
        (runtime, others) for runtime in known.runtimes if runtime.unit and (others := _differing(runtime, wanted))
    )
    return LimitChanges(files=files, running=running, words=tuple(_describe_limits(files, running)))


def _differing(runtime: ProcessLimits, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of a process that are not as wanted."""
    return {name: value for name, value in wanted.items() if runtime.limits.get(name) != (value, value)}


def _describe_limits(
    files: Mapping[str, FileLines], running: tuple[tuple[ProcessLimits, Mapping[str, str]], ...]
) -> list[str]:
    told = [
        f"limits of {runtime.name} set: {', '.join(f'{name}={value}' for name, value in others.items())}"
        for runtime, others in running
    ]
    kept = [_unit(path) for path, lines in files.items() if lines]
    gone = [_unit(path) for path, lines in files.items() if not lines]
    told += [f"limits kept for the boot: {', '.join(kept)}"] if kept else []
    return told + ([f"limits no longer kept for the boot: {', '.join(gone)}"] if gone else [])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanges:
    """What is missing for the settings to be in force, now and after a boot.

    Attributes:
        files: Path -> what it shall hold, of the files that hold something else; None for no file.
        sysctls: Kernel parameters whose running value is another one.
        links: Whether links to devices are to be made now.
        words: Every change in words; empty for none.
    """

    files: Mapping[str, FileLines]
    sysctls: Mapping[str, str]
    links: bool
    words: tuple[str, ...]

    @property
    def rules(self) -> bool:
        """Whether udev has to read its rules anew."""
        return LINKS_RULE in self.files


def settings_changes(known: Settings, *, sysctls: Mapping[str, str], links: bool) -> SettingsChanges:
    """Return what is missing.

    Args:
        known: What there is.
        sysctls: Kernel parameters by name.
        links: Whether links in /dev/char are made whenever a driver loads.
    """
    wanted = {
        SYSCTL_FILE: sysctl_lines(sysctls),
        LINKS_SCRIPT: _LINKS_LINES if links else None,
        LINKS_RULE: _RULE_LINES if links else None,
    }
    files = {path: lines for path, lines in wanted.items() if known.files.get(path) != lines}
    running = {key: value for key, value in sysctls.items() if known.running.get(key) != _normal(value)}
    return SettingsChanges(
        files=files,
        sysctls=running,
        links=links and LINKS_SCRIPT in files and known.driver_loaded,
        words=tuple(_describe_settings(files, running, links=links)),
    )


def _describe_settings(files: Mapping[str, FileLines], running: Mapping[str, str], *, links: bool) -> list[str]:
    told = []
    if running:
        told.append(f"kernel parameters set: {', '.join(f'{key}={value}' for key, value in running.items())}")
    if SYSCTL_FILE in files:
        told.append(f"kernel parameters {'kept for the boot' if files[SYSCTL_FILE] else 'no longer kept for the boot'}")
    if LINKS_RULE in files or LINKS_SCRIPT in files:
        told.append("GPUs linked in /dev/char" if links else "GPUs no longer linked in /dev/char")
    return told


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
    record_changes(changes.words, "settings", "originals")
    for path, lines in changes.files.items():
        show_diff(path, record.settings.files.get(path), lines)
    if changes.sysctls:
        yield StringCommand(sysctl_command(changes.sysctls))
    for path, lines in changes.files.items():
        yield write_with_backup(path, lines)
    if changes.rules:
        yield StringCommand(f"{PATH}; ! command -v udevadm >/dev/null || udevadm control --reload || :")
    if changes.links:
        yield StringCommand(f"sh {LINKS_SCRIPT}")


@host_operation
def limits(values: Mapping[str, str], reload: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have containers begin with limits, by those of their runtime: of its process now, of its unit from then on.

    Nothing is restarted: containers that are there keep theirs. Limits that are no longer declared stay in force until
    the runtime starts anew.

    Args:
        values: Limits by name: ``{"memlock": "unlimited", "stack": "64Mi"}``.
        reload: Whether systemd reads its units at once; otherwise it does so at its next reload.
    """
    record = require_host(("system", "kernel", "limits"))
    runtimes = record.limits.runtimes
    if values and not any(runtime.unit for runtime in runtimes):
        raise RunFailed(no_runtime_unit(host.name, runtimes))
    changes = limit_changes(record.limits, values)
    record_changes(changes.words, "limits", "originals")
    for path, lines in changes.files.items():
        show_diff(path, record.limits.files.get(path), lines)
    for path, lines in changes.files.items():
        yield write_with_backup(path, lines)
    if changes.files and reload:
        yield StringCommand(f"{PATH} systemctl daemon-reload")
    for runtime, others in changes.running:
        yield StringCommand(f"{PATH} {limit_command(runtime, others)}")
