"""Everything known of a host at one moment, and the one command that reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from gpu_provision.hosts.facts.backups import ORIGINALS_SECTION, Originals
from gpu_provision.hosts.facts.driver import DRIVER_SECTION, PERSISTENCE_SECTION, Driver, Persistence
from gpu_provision.hosts.facts.gpus import PCI_SECTION, Pci
from gpu_provision.hosts.facts.kernel import (
    ALWAYS,
    KERNEL_SECTION,
    KERNELS_SECTION,
    MODULES_SECTION,
    NOUVEAU_SECTION,
    Kernel,
    Kernels,
    Modules,
    Nouveau,
    canonical,
)
from gpu_provision.hosts.facts.kubernetes import KUBERNETES_SECTION, Kubernetes
from gpu_provision.hosts.facts.packages import HOLDS_SECTION, PACKAGES_SECTION, Holds, Packages
from gpu_provision.hosts.facts.proxies import PROXIES_SECTION, Proxies
from gpu_provision.hosts.facts.runtime import (
    DOCKER,
    ENVIRONMENT_SECTION,
    LIMITS_SECTION,
    RUNTIMES_SECTION,
    ContainerRuntime,
    Environment,
    Limits,
)
from gpu_provision.hosts.facts.section import BY_ROOT, Said, Section
from gpu_provision.hosts.facts.services import SERVICES_SECTION, Services
from gpu_provision.hosts.facts.storage import HUGEPAGES_SECTION, STORAGE_SECTION, Hugepages, Storage
from gpu_provision.hosts.facts.system import (
    CONFINEMENT_SECTION,
    FIRMWARE_SECTION,
    IPMI_SECTION,
    SETTINGS_SECTION,
    SYSTEM_SECTION,
    Clock,
    Confinement,
    Firmware,
    Ipmi,
    Settings,
    System,
    clock_of,
)

SECTIONS: tuple[Section[Any], ...] = (
    SYSTEM_SECTION,
    KERNEL_SECTION,
    KERNELS_SECTION,
    MODULES_SECTION,
    NOUVEAU_SECTION,
    PCI_SECTION,
    FIRMWARE_SECTION,
    PACKAGES_SECTION,
    DRIVER_SECTION,
    SERVICES_SECTION,
    RUNTIMES_SECTION,
    KUBERNETES_SECTION,
    PROXIES_SECTION,
    STORAGE_SECTION,
    CONFINEMENT_SECTION,
    IPMI_SECTION,
    SETTINGS_SECTION,
    ENVIRONMENT_SECTION,
    HOLDS_SECTION,
    HUGEPAGES_SECTION,
    LIMITS_SECTION,
    PERSISTENCE_SECTION,
    ORIGINALS_SECTION,
)
"""All that can be read; the names are those of HostRecord's fields."""

ALL = tuple(section.name for section in SECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host at one moment. A section that was not read is as if it had nothing to say.

    Attributes:
        asked: Kernel modules that were looked up, with underscores.
        read: Names of the sections that were read.
    """

    system: System = field(default_factory=System)
    kernel: Kernel = field(default_factory=Kernel)
    kernels: Kernels = field(default_factory=Kernels)
    modules: Modules = field(default_factory=Modules)
    nouveau: Nouveau = field(default_factory=Nouveau)
    pci: Pci = field(default_factory=Pci)
    firmware: Firmware = field(default_factory=Firmware)
    packages: Packages = field(default_factory=Packages)
    driver: Driver = field(default_factory=Driver)
    services: Services = field(default_factory=Services)
    runtimes: tuple[ContainerRuntime, ...] = ()
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    proxies: Proxies = field(default_factory=Proxies)
    storage: Storage = field(default_factory=Storage)
    confinement: Confinement = field(default_factory=Confinement)
    ipmi: Ipmi = field(default_factory=Ipmi)
    settings: Settings = field(default_factory=Settings)
    environment: Environment = field(default_factory=Environment)
    holds: Holds = field(default_factory=Holds)
    hugepages: Hugepages = field(default_factory=Hugepages)
    limits: Limits = field(default_factory=Limits)
    persistence: Persistence = field(default_factory=Persistence)
    originals: Originals = field(default_factory=Originals)
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


# `bounded` is for programs that answer at once or hang, `patient` for those that may take their time.
_PRELUDE = rf"""
{BY_ROOT}
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
exec </dev/null
bounded=
patient=
timeout 5 true 2>/dev/null && {{ bounded='timeout 5'; patient='timeout 20'; }}
kernel=$(uname -r)
stock=/lib/modules/$kernel
show() {{
  word=$1; shift
  for file in "$@"; do [ -f "$file" ] && [ -r "$file" ] && {{ sed "s/^/$word /" "$file"; echo; }}; done
}}
"""

# A comment in Latin-1 in somebody's file would make whole lines unreadable, or the host: what is no UTF-8 goes.
_CLEAN = """
clean=cat
command -v iconv >/dev/null && clean='iconv -c -f UTF-8 -t UTF-8'
"""


def command(modules_asked: Iterable[str] = (), sections: Sequence[str] = ALL) -> str:
    """Return the shell command that reads a host, or some sections of it.

    Args:
        modules_asked: Kernel modules to look up, with dashes or underscores, besides those that always are.
        sections: Names of sections; the record's kernel is named in any case.
    """
    names = sorted({*map(canonical, modules_asked), *ALWAYS})
    pattern = "|".join(re.escape(name).replace("_", "[-_]") for name in names)
    wanted = [section for section in SECTIONS if section.name in sections]
    parts = [f"echo '[{section.name}]'\n({section.script}) 2>/dev/null" for section in wanted]
    asked = f"echo '[asked]'\necho {shlex.quote(' '.join(['modules', *names]))}"
    script = "\n".join([_CLEAN, "{", _PRELUDE, *parts, asked, "echo '[end]'", "} | $clean || :"])
    return script.replace("@PATTERN@", shlex.quote(pattern)).replace("@MODULES@", shlex.join(names)).strip()


def parse(output: Iterable[str], *, asked_at: float = 0.0, answered_at: float = 0.0) -> HostRecord | None:
    """Read what the command printed.

    Args:
        output: Its lines.
        asked_at: Our own time in seconds when it was sent; 0 if nobody looked.
        answered_at: Our own time when the answer was there.

    Returns:
        The record; None if the output does not go to its end, or names no kernel though it should.
    """
    said = _sections(output)
    if "end" not in said or ("kernel" in said and not Said(said["kernel"]).first("running")):
        return None
    parts = {section.name: section.read(Said(said[section.name])) for section in SECTIONS if section.name in said}
    return HostRecord(
        **parts,
        clock=clock_of(parts.get("system"), asked_at, answered_at),
        asked=frozenset(Said(said.get("asked", ())).first("modules").split()),
        read=frozenset(parts),
    )


def _sections(output: Iterable[str]) -> Mapping[str, list[str]]:
    """Split the output at its headings. No host can make one: its own lines all begin with a word of ours."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output:
        heading = re.fullmatch(r"\[([a-z0-9]+)\]\s*", line)
        if heading:
            lines = found.setdefault(heading[1], [])
        else:
            lines.append(line)
    return found


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
