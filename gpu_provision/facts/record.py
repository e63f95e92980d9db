"""Everything known of a host at one moment, and the one command that reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpu_provision.facts import (
    confinement,
    driver,
    environment,
    firmware,
    holds,
    hugepages,
    ipmi,
    kernel,
    kernels,
    kubernetes,
    limits,
    modules,
    nouveau,
    originals,
    packages,
    pci,
    persistence,
    proxies,
    runtimes,
    services,
    settings,
    storage,
    system,
)
from gpu_provision.facts.clock import Clock, clock_of
from gpu_provision.facts.plain import plain
from gpu_provision.facts.runtimes import DOCKER, ContainerRuntime
from gpu_provision.facts.section import BY_ROOT, Said, Section

SECTIONS: tuple[Section[Any], ...] = (
    system.SECTION,
    kernel.SECTION,
    kernels.SECTION,
    modules.SECTION,
    nouveau.SECTION,
    pci.SECTION,
    firmware.SECTION,
    packages.SECTION,
    driver.SECTION,
    services.SECTION,
    runtimes.SECTION,
    kubernetes.SECTION,
    proxies.SECTION,
    storage.SECTION,
    confinement.SECTION,
    ipmi.SECTION,
    settings.SECTION,
    environment.SECTION,
    holds.SECTION,
    hugepages.SECTION,
    limits.SECTION,
    persistence.SECTION,
    originals.SECTION,
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

    system: system.System = field(default_factory=system.System)
    kernel: kernel.Kernel = field(default_factory=kernel.Kernel)
    kernels: kernels.Kernels = field(default_factory=kernels.Kernels)
    modules: modules.Modules = field(default_factory=modules.Modules)
    nouveau: nouveau.Nouveau = field(default_factory=nouveau.Nouveau)
    pci: pci.Pci = field(default_factory=pci.Pci)
    firmware: firmware.Firmware = field(default_factory=firmware.Firmware)
    packages: packages.Packages = field(default_factory=packages.Packages)
    driver: driver.Driver = field(default_factory=driver.Driver)
    services: services.Services = field(default_factory=services.Services)
    runtimes: tuple[ContainerRuntime, ...] = ()
    kubernetes: kubernetes.Kubernetes = field(default_factory=kubernetes.Kubernetes)
    proxies: proxies.Proxies = field(default_factory=proxies.Proxies)
    storage: storage.Storage = field(default_factory=storage.Storage)
    confinement: confinement.Confinement = field(default_factory=confinement.Confinement)
    ipmi: ipmi.Ipmi = field(default_factory=ipmi.Ipmi)
    settings: settings.Settings = field(default_factory=settings.Settings)
    environment: environment.Environment = field(default_factory=environment.Environment)
    holds: holds.Holds = field(default_factory=holds.Holds)
    hugepages: hugepages.Hugepages = field(default_factory=hugepages.Hugepages)
    limits: limits.Limits = field(default_factory=limits.Limits)
    persistence: persistence.Persistence = field(default_factory=persistence.Persistence)
    originals: originals.Originals = field(default_factory=originals.Originals)
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
    names = sorted({*map(modules.canonical, modules_asked), *modules.ALWAYS})
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
