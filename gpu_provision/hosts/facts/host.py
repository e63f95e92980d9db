"""Everything known of a host at one moment, and the one command that reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import SectionOutput
from gpu_provision.hosts.facts.driver import Driver, Persistence, read_driver, read_persistence
from gpu_provision.hosts.facts.gpus import Pci, read_pci
from gpu_provision.hosts.facts.kernel import (
    ALWAYS,
    Kernel,
    KernelModules,
    Kernels,
    Nouveau,
    canonical,
    read_kernel,
    read_kernels,
    read_modules,
    read_nouveau,
)
from gpu_provision.hosts.facts.packages import Holds, Packages, read_holds, read_packages
from gpu_provision.hosts.facts.remains import Originals, read_originals
from gpu_provision.hosts.facts.runtime import (
    DOCKER,
    ContainerRuntime,
    Environment,
    Kubernetes,
    RuntimeLimits,
    read_environment,
    read_kubernetes,
    read_limits,
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
    read_firmware,
    read_hugepages,
    read_proxies,
    read_services,
    read_settings,
    read_storage,
    read_system,
)
from gpu_provision.model.hosts import DISTRIBUTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host at one moment. A section that was not read is as if it had nothing to say.

    Attributes:
        asked: Kernel modules that were looked up, with underscores.
        read: Names of the sections that were read.
    """

    system: System = field(default_factory=System, metadata={"read": read_system})
    kernel: Kernel = field(default_factory=Kernel, metadata={"read": read_kernel})
    kernels: Kernels = field(default_factory=Kernels, metadata={"read": read_kernels})
    modules: KernelModules = field(default_factory=KernelModules, metadata={"read": read_modules})
    nouveau: Nouveau = field(default_factory=Nouveau, metadata={"read": read_nouveau})
    pci: Pci = field(default_factory=Pci, metadata={"read": read_pci})
    firmware: Firmware = field(default_factory=Firmware, metadata={"read": read_firmware})
    packages: Packages = field(default_factory=Packages, metadata={"read": read_packages})
    driver: Driver = field(default_factory=Driver, metadata={"read": read_driver})
    services: Services = field(default_factory=Services, metadata={"read": read_services})
    runtimes: tuple[ContainerRuntime, ...] = field(default_factory=tuple, metadata={"read": read_runtimes})
    kubernetes: Kubernetes = field(default_factory=Kubernetes, metadata={"read": read_kubernetes})
    proxies: Proxies = field(default_factory=Proxies, metadata={"read": read_proxies})
    storage: Storage = field(default_factory=Storage, metadata={"read": read_storage})
    settings: Settings = field(default_factory=Settings, metadata={"read": read_settings})
    environment: Environment = field(default_factory=Environment, metadata={"read": read_environment})
    holds: Holds = field(default_factory=Holds, metadata={"read": read_holds})
    hugepages: Hugepages = field(default_factory=Hugepages, metadata={"read": read_hugepages})
    limits: RuntimeLimits = field(default_factory=RuntimeLimits, metadata={"read": read_limits})
    persistence: Persistence = field(default_factory=Persistence, metadata={"read": read_persistence})
    originals: Originals = field(default_factory=Originals, metadata={"read": read_originals})
    clock: Clock = field(default_factory=Clock)
    asked: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values: stock pyinfra prints facts by this name."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}

    @property
    def nouveau_loaded(self) -> bool:
        """Whether nouveau holds, or could take, a GPU right now."""
        return "nouveau" in self.modules.loaded

    @property
    def cri(self) -> ContainerRuntime | None:
        """The container runtime that the kubelet uses; None without Kubernetes, or if it is not found."""
        socket = self.kubernetes.socket
        running = [runtime for runtime in self.runtimes if runtime.running]
        found = [runtime for runtime in running if socket and _same(runtime.socket, socket)]
        if not found and "dockerd" in socket:  # cri-dockerd speaks for it
            found = [runtime for runtime in running if runtime.kind == DOCKER]
        if not found and _same(socket, self.kubernetes.places.socket):  # not everybody may look for the socket
            found = [each for each in running if each.config == self.kubernetes.places.containerd_config]
        return next(iter(found), None)


def _same(socket: str, other: str) -> bool:
    """Return whether two paths are one: /var/run is a link to /run."""
    return socket.removeprefix("/var") == other.removeprefix("/var") != ""


SECTIONS: Mapping[str, Callable[[SectionOutput], Any]] = {
    each.name: each.metadata["read"] for each in fields(HostRecord) if "read" in each.metadata
}
"""Section and field of HostRecord -> what reads its lines, of none, too. None raises: a line that cannot be read
is left out, or what it says is unknown."""

ALL = tuple(SECTIONS)


def command(modules_asked: Iterable[str] = (), sections: Sequence[str] = ALL) -> str:
    """Return the shell command that reads some sections of a host, and looks up kernel modules besides ALWAYS."""
    names = sorted({*map(canonical, modules_asked), *ALWAYS})
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


def parse(lines: Iterable[str], *, asked_at: float = 0.0, answered_at: float = 0.0) -> HostRecord | None:
    """Read what the command printed; None if that does not go to its end, or names no kernel though it should.

    The times are this machine's, in seconds: when the command was sent, 0 if unknown, and when the answer was there.
    """
    output = _sections(lines)
    if "end" not in output or ("kernel" in output and not output["kernel"].first("running")):
        return None
    parts = {name: read(output[name]) for name, read in SECTIONS.items() if name in output}
    return HostRecord(
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


def plain(value: Any) -> Any:
    """Return a value with records and mappings as dicts, sets as sorted lists, members of an Enum as their value."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case set() | frozenset():
            return sorted(map(plain, value))
        case list() | tuple():
            return [plain(each) for each in value]
        case Enum():
            return plain(value.value)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value if isinstance(value, bool | int | float | None) else str(value)
