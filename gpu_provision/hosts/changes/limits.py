"""Limits that containers begin with, decided from a host's record alone.

Kubernetes sets no limits: a container has those of its runtime's process, which has them from its unit. What stands in
/etc/security/limits.d counts for people who log in, and for no container.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.hosts.facts.kernel import FileLines
from gpu_provision.hosts.facts.runtime import (
    DROP_INS,
    LIMITS_DROP_IN,
    UNLIMITED,
    Limited,
    Limits,
)
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

HEADER = "# Written by gpu-provision: limits that containers begin with."
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
    running: tuple[tuple[Limited, Mapping[str, str]], ...]
    words: tuple[str, ...]


def limit_changes(known: Limits, limits: Mapping[str, str]) -> LimitChanges:
    """Return what is missing."""
    wanted = {name: value_of(text) for name, text in limits.items()}
    units = {runtime.unit for runtime in known.runtimes if runtime.unit} if wanted else set()
    lines = _lines(wanted)
    paths = sorted({*known.files, *map(_path, units)})
    goal = {path: lines if _unit(path) in units else None for path in paths}
    files = {path: content for path, content in goal.items() if known.files.get(path) != content}
    running = tuple(
        (runtime, others) for runtime in known.runtimes if runtime.unit and (others := _others(runtime, wanted))
    )
    return LimitChanges(files=files, running=running, words=tuple(_words(files, running)))


def _others(runtime: Limited, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of a process that are not as wanted."""
    return {name: value for name, value in wanted.items() if runtime.limits.get(name) != (value, value)}


def _words(files: Mapping[str, FileLines], running: tuple[tuple[Limited, Mapping[str, str]], ...]) -> list[str]:
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


def _lines(wanted: Mapping[str, str]) -> FileLines:
    """Return the drop-in of a unit, in systemd's words."""
    settings = (f"Limit{name.upper()}={value.replace(UNLIMITED, 'infinity')}" for name, value in wanted.items())
    return (HEADER, "[Service]", *settings)


def _path(unit: str) -> str:
    return f"{DROP_INS}/{unit}.d/{LIMITS_DROP_IN}"


def _unit(path: str) -> str:
    return path.removeprefix(f"{DROP_INS}/").partition(".d/")[0]


def set_now(runtime: Limited, limits: Mapping[str, str]) -> str:
    """Return the shell command that gives a running process limits, and with it all containers from now on."""
    options = (f"--{name}={value}:{value}" for name, value in limits.items())
    return shlex.join(["prlimit", "--pid", str(runtime.pid), *options])


def no_unit(host: str, runtimes: tuple[Limited, ...]) -> Finding:
    """Return the error about container runtimes that no unit starts, or that do not run."""
    seen = ", ".join(f"{runtime.name}[{runtime.pid}]" for runtime in runtimes)
    return Finding(
        code=codes.NO_RUNTIME_UNIT,
        what="limits cannot be set: no unit of systemd runs a container runtime here",
        where=host,
        evidence=f"{seen} without a unit" if seen else "no process containerd, crio or dockerd",
        fix="systemctl start containerd, or take limits off host_prerequisites for this node",
    )
