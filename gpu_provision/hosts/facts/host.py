"""Everything known of a host at one moment, and the one command that reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import Section, SectionOutput, part
from gpu_provision.hosts.facts.gpus import Driver, Pci, Persistence
from gpu_provision.hosts.facts.kernel import ALWAYS, Kernel, KernelModules, Kernels, Nouveau, canonical_name
from gpu_provision.hosts.facts.packages import Holds, Originals, Packages
from gpu_provision.hosts.facts.runtime import (
    DOCKER,
    ContainerRuntime,
    Environment,
    Kubernetes,
    RuntimeLimits,
    read_runtimes,
)
from gpu_provision.hosts.facts.system import (
    UNITS,
    Clock,
    Firmware,
    Hugepages,
    Proxies,
    Services,
    Settings,
    Storage,
    System,
    clock_of,
)
from gpu_provision.model.hosts import DISTRIBUTIONS


def section(kind: type[Section]) -> Any:
    """Return a field that a section of the fact fills."""
    return field(default_factory=kind, metadata={"read": kind.read})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One host at one moment. A section that was not read is as if it had nothing to say."""

    system: System = section(System)
    kernel: Kernel = section(Kernel)
    kernels: Kernels = section(Kernels)
    modules: KernelModules = section(KernelModules)
    nouveau: Nouveau = section(Nouveau)
    pci: Pci = section(Pci)
    firmware: Firmware = section(Firmware)
    packages: Packages = section(Packages)
    driver: Driver = section(Driver)
    services: Services = section(Services)
    runtimes: tuple[ContainerRuntime, ...] = part(read_runtimes, empty=())
    kubernetes: Kubernetes = section(Kubernetes)
    proxies: Proxies = section(Proxies)
    storage: Storage = section(Storage)
    settings: Settings = section(Settings)
    environment: Environment = section(Environment)
    holds: Holds = section(Holds)
    hugepages: Hugepages = section(Hugepages)
    limits: RuntimeLimits = section(RuntimeLimits)
    persistence: Persistence = section(Persistence)
    originals: Originals = section(Originals)
    clock: Clock = field(default_factory=Clock)
    asked: frozenset[str] = frozenset()  # kernel modules that were looked up, with underscores
    read: frozenset[str] = frozenset()  # names of the sections that were read

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values: stock pyinfra prints facts by this name."""
        return {each.name: to_json_value(getattr(self, each.name)) for each in fields(self)}

    @property
    def nouveau_loaded(self) -> bool:
        """Whether nouveau, or nova_core, holds, or could take, a GPU right now."""
        return bool(self.modules.in_tree_drivers)

    @property
    def cri(self) -> ContainerRuntime | None:
        """The container runtime that the kubelet uses; None without Kubernetes, or if it is not found."""
        socket = self.kubernetes.socket
        running = [runtime for runtime in self.runtimes if runtime.running]
        found = [runtime for runtime in running if socket and _is_same_socket(runtime.socket, socket)]
        if not found and "dockerd" in socket:  # cri-dockerd speaks for it
            found = [runtime for runtime in running if runtime.kind == DOCKER]
        if not found and _is_same_socket(socket, self.kubernetes.paths.socket):  # not everybody may look for the socket
            found = [each for each in running if each.config == self.kubernetes.paths.containerd_config]
        return next(iter(found), None)


def _is_same_socket(socket: str, other: str) -> bool:
    """Return whether two paths are one: /var/run is a link to /run."""
    return socket.removeprefix("/var") == other.removeprefix("/var") != ""


SECTIONS: Mapping[str, Callable[[SectionOutput], Any]] = {
    each.name: each.metadata["read"] for each in fields(HostFacts) if "read" in each.metadata
}
"""Section and field of HostRecord -> what reads its lines, of none, too. None raises: a line that cannot be read
is left out, or what it says is unknown."""

ALL = tuple(SECTIONS)


def command(modules_asked: Iterable[str] = (), sections: Sequence[str] = ALL) -> str:
    """Return the shell command that reads some sections of a host, and looks up kernel modules besides ALWAYS."""
    names = sorted({*map(canonical_name, modules_asked), *ALWAYS})
    variables = scripts.assign(
        module_names=" ".join(names),
        module_pattern="|".join(re.escape(name).replace("_", "[-_]") for name in names),
        units=" ".join(f"{unit}.service" for unit in UNITS),
        distribution_marks=" ".join(
            f"{name}:{mark}" for name, places in DISTRIBUTIONS.items() for mark in places.marks
        ),
        distribution_runtimes=" ".join(
            f"containerd,{places.binary},{places.containerd_config},{places.socket}"
            for places in DISTRIBUTIONS.values()
            if places.binary
        ),
    )
    wanted = shlex.join(name for name in ALL if name in sections)
    return f"{variables}{scripts.load('facts.sh')}read_sections {wanted} | clean"


def parse(lines: Iterable[str], *, asked_at: float = 0.0, answered_at: float = 0.0) -> HostFacts | None:
    """Read what the command printed; None if that does not go to its end, or names no kernel though it should.

    The times are this machine's, in seconds: when the command was sent, 0 if unknown, and when the answer was there.
    """
    output = _sections(lines)
    if "end" not in output or ("kernel" in output and not output["kernel"].first("running")):
        return None
    parts = {name: read(output[name]) for name, read in SECTIONS.items() if name in output}
    return HostFacts(
        **parts,
        clock=clock_of(parts.get("system"), asked_at, answered_at),
        asked=frozenset(output["asked"].first("modules").split() if "asked" in output else ()),
        read=frozenset(parts),
    )


def _sections(lines: Iterable[str]) -> Mapping[str, SectionOutput]:
    """Split the output at its headings. No host can make one: its own lines all begin with a word of the script."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        heading = re.fullmatch(r"\[([a-z0-9]+)\]\s*", line)
        if heading:
            current = found.setdefault(heading[1], [])
        else:
            current.append(line)
    return {name: SectionOutput(section) for name, section in found.items()}


def to_json_value(value: Any) -> Any:
    """Return a value with records and mappings as dicts, sets as sorted lists, members of an Enum as their value."""
    match value:
        case Mapping():
            return {str(key): to_json_value(each) for key, each in value.items()}
        case set() | frozenset():
            return sorted(map(to_json_value, value))
        case list() | tuple():
            return [to_json_value(each) for each in value]
        case Enum():
            return to_json_value(value.value)
    if is_dataclass(value):
        return {each.name: to_json_value(getattr(value, each.name)) for each in fields(value)}
    return value if isinstance(value, bool | int | float | None) else str(value)
