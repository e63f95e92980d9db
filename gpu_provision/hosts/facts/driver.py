"""An NVIDIA driver on the host: loaded, on disk, its libraries, and how it came there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.hosts.facts import SectionOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a host; everything is empty where there is none."""

    loaded: str = ""  # version of the loaded kernel module
    # whether the loaded module is the open one; None if none is loaded or it does not say
    loaded_open: bool | None = None
    in_container: bool = False  # whether a driver container, also one of the GPU Operator, has loaded it
    module: str = ""  # path of the module that ``modprobe nvidia`` would load
    module_version: str = ""  # its version
    module_license: str = ""  # ``NVIDIA``, or ``Dual MIT/GPL`` for the open one
    module_signer: str = ""  # who has signed it; empty if unsigned
    libraries: tuple[str, ...] = ()  # paths of the host's libnvidia-ml, with versions
    programs: tuple[str, ...] = ()  # paths of NVIDIA's programs on the host
    dkms: tuple[tuple[str, str], ...] = ()  # (version, kernel) of modules that DKMS has built

    @property
    def library_versions(self) -> tuple[str, ...]:
        """Versions of the libraries, each once; more than one is a mix."""
        found = (path.rpartition("libnvidia-ml.so.")[2] for path in self.libraries)
        return tuple(dict.fromkeys(version for version in found if version))

    @property
    def on_host(self) -> bool:
        """Whether the host has a driver of its own, loaded or not."""
        return bool(self.module or self.libraries or (self.loaded and not self.in_container))

    @property
    def usable(self) -> str:
        """Version of the host's own driver if containers can have their GPUs by it; empty if not.

        It is loaded, or can be into the running kernel. While a container's is loaded, that is the driver; one that
        is loaded and whose files are gone has been removed.
        """
        if self.loaded:
            return self.loaded if self.has_files and not self.in_container else ""
        return (self.module_version or "unknown") if self.module else ""

    @property
    def has_files(self) -> bool:
        """Whether anything of it is on disk; the container toolkit has programs of its own."""
        return bool(self.module or self.libraries or set(self.programs) - _OF_TOOLKIT)

    @property
    def version(self) -> str:
        """The version of the host's own driver, as far as anything tells it."""
        own = "" if self.in_container else self.loaded
        return own or self.module_version or next(iter(self.library_versions), "")


_DKMS = re.compile(r"nvidia[^/]*/(\d[^/]*)/(\d[^/]*)/[^/]+")
_OF_TOOLKIT = frozenset({"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime"})


def read_driver(output: SectionOutput) -> Driver:
    """Read the section's lines."""
    proc = " ".join(output.all("proc"))
    return Driver(
        loaded=output.first("loaded"),
        loaded_open="Open Kernel Module" in proc if "NVRM version" in proc else None,
        in_container=output.has("container"),
        module=output.first("filename"),
        module_version=output.first("version"),
        module_license=output.first("license"),
        module_signer=output.first("signer"),
        libraries=tuple(output.all("library")),
        programs=tuple(output.all("program")),
        # ``nvidia/580.65.06/6.8.0-45-generic/x86_64``; sources and backups lie in other places there
        dkms=tuple((built[1], built[2]) for built in map(_DKMS.fullmatch, output.all("dkms")) if built),
    )


DAEMON = "nvidia-persistenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Persistence mode, as far as units tell; the driver itself is not asked: it may hang."""

    daemon_off: bool = False  # whether NVIDIA's daemon starts with persistence mode off, as Ubuntu's unit does
    own_file: tuple[str, ...] | None = None  # lines of our own unit; None if there is none
    enabled: tuple[str, ...] = ()  # units that we enabled, without ``.service``
    no_systemd: bool = False  # whether systemd does not run this host


def read_persistence(output: SectionOutput) -> Persistence:
    """Read the section's lines."""
    return Persistence(
        daemon_off=output.has("off"),
        own_file=output.own_file(),
        enabled=output.names("enabled"),
        no_systemd=output.has("no-systemd"),
    )
