"""Facts about GPU hosts for any pyinfra deploy file; they change nothing and need no inventory.

``pyinfra INVENTORY fact gpu_provision.host_facts.GpuFacts`` prints them, with ``--json`` for programs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pyinfra.api.facts import FactBase

from gpu_provision.hosts.facts.gpus import Driver, PciDevice
from gpu_provision.hosts.facts.host import command, parse, to_json_value
from gpu_provision.hosts.facts.kernel import Nouveau
from gpu_provision.hosts.facts.runtime import ContainerRuntime

__all__ = ["ContainerRuntime", "Driver", "GpuFacts", "GpuHostFacts", "Nouveau", "PciDevice"]

_SECTIONS = ("kernel", "modules", "nouveau", "pci", "driver", "runtimes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHostFacts:
    """What a host is for a GPU stack."""

    kernel: str  # release of the running kernel, as ``uname -r`` prints it
    gpus: tuple[PciDevice, ...]  # NVIDIA's GPUs on the PCI bus, read from /sys
    driver: Driver  # ``driver.loaded`` is the version of the loaded module, empty for none
    nouveau: Nouveau  # what keeps nouveau away, and whether the initramfs knows it
    nouveau_loaded: bool
    runtimes: tuple[ContainerRuntime, ...]  # installed or running

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which pyinfra's ``--json`` prints."""
        return {each.name: to_json_value(getattr(self, each.name)) for each in fields(self)}


class GpuFacts(FactBase[GpuHostFacts | None]):
    """A host's GPUs, driver, nouveau, kernel and container runtimes; None if the host could not be read.

    One POSIX shell command that needs neither lspci nor nvidia-smi. Without root it does not see which program a
    container runtime runs.

    Example::

        facts = host.get_fact(GpuFacts)
        if facts and facts.gpus and not facts.driver.loaded:
            ...
    """

    def command(self) -> str:
        """Return the shell command."""
        return command(sections=_SECTIONS)

    def process(self, output: list[str]) -> GpuHostFacts | None:
        """Read what the command printed."""
        if record := parse(output):
            same = {name: getattr(record, name) for name in ("driver", "nouveau", "nouveau_loaded", "runtimes")}
            return GpuHostFacts(kernel=record.kernel.running, gpus=record.pci.gpus, **same)
        return None
