"""An NVIDIA driver on the host: loaded, on disk, its libraries, and how it came there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.hosts.facts.backups import HOME
from gpu_provision.hosts.facts.kernel import own_file
from gpu_provision.hosts.facts.section import Said, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a host; everything is empty where there is none.

    Attributes:
        loaded: Version of the loaded kernel module.
        loaded_open: Whether the loaded module is the open one; None if none is loaded or it does not say.
        in_container: Whether a driver container of ours, or of the GPU Operator, has put it there.
        module: Path of the module that ``modprobe nvidia`` would load.
        module_version: Its version.
        module_license: ``NVIDIA``, or ``Dual MIT/GPL`` for the open one.
        module_signer: Who has signed it; empty for nobody.
        libraries: Paths of the host's libnvidia-ml, with versions.
        programs: Paths of NVIDIA's programs on the host.
        dkms: (version, kernel) of modules that DKMS has built.
    """

    loaded: str = ""
    loaded_open: bool | None = None
    in_container: bool = False
    module: str = ""
    module_version: str = ""
    module_license: str = ""
    module_signer: str = ""
    libraries: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    dkms: tuple[tuple[str, str], ...] = ()

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


_OF_TOOLKIT = frozenset({"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime"})
_LIBRARIES = (
    "/usr/lib/*/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.* /usr/lib/libnvidia-ml.so.*.* "
    "/usr/lib/*/nvidia/current/libnvidia-ml.so.*.*"
)
_PROGRAMS = (
    "/usr/bin/nvidia-smi /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer /usr/bin/nv-fabricmanager "
    "/usr/bin/nvidia-persistenced /usr/bin/nvidia-ctk /usr/bin/nvidia-container-runtime"
)

# nvidia-smi is not run: it hangs on a GPU that has fallen off the bus.
_DRIVER_SCRIPT = rf"""
[ -r /sys/module/nvidia/version ] && sed 's/^/loaded /' /sys/module/nvidia/version
[ -r /proc/driver/nvidia/version ] && sed 's/^/proc /' /proc/driver/nvidia/version
grep -q ' /run/nvidia/driver' /proc/mounts && echo container
[ -e /run/nvidia/driver/usr/bin/nvidia-smi ] && echo container
if grep -qE '/nvidia(-current)?\.ko' "$stock/modules.dep"; then
  $bounded modinfo nvidia | sed -nE 's/^(filename|version|license|signer):[[:space:]]*/\1 /p'
fi
for file in {_LIBRARIES}; do [ -s "$file" ] && echo "library $file"; done
for file in {_PROGRAMS}; do [ -s "$file" ] && echo "program $file"; done
for built in /var/lib/dkms/nvidia*/*/*/*; do [ -d "$built" ] && echo "dkms ${{built#/var/lib/dkms/}}"; done
true
"""


def read_driver(said: Said) -> Driver:
    """Read the section."""
    proc = " ".join(said.all("proc"))
    return Driver(
        loaded=said.first("loaded"),
        loaded_open="Open Kernel Module" in proc if "NVRM version" in proc else None,
        in_container=said.has("container"),
        module=said.first("filename"),
        module_version=said.first("version"),
        module_license=said.first("license"),
        module_signer=said.first("signer"),
        libraries=tuple(said.all("library")),
        programs=tuple(said.all("program")),
        dkms=tuple(built for line in said.all("dkms") for built in _dkms(line)),
    )


def _dkms(path: str) -> list[tuple[str, str]]:
    """Read ``nvidia/580.65.06/6.8.0-45-generic/x86_64``; sources and backups lie in other places there."""
    found = re.fullmatch(r"nvidia[^/]*/(\d[^/]*)/(\d[^/]*)/[^/]+", path)
    return [(found[1], found[2])] if found else []


DRIVER_SECTION = Section("driver", _DRIVER_SCRIPT, read_driver)

DAEMON = "nvidia-persistenced"
OWN_UNIT = "gpu-provision-persistence"
OWN_FILE = f"/etc/systemd/system/{OWN_UNIT}.service"
ENABLED_FILE = f"{HOME}/enabled-units"
"""Names of units that we enabled, one a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Persistence mode, as far as units tell; the driver itself is not asked: it may hang.

    Attributes:
        daemon_off: Whether NVIDIA's daemon is told to start with persistence mode off, as Ubuntu's unit does.
        own_file: Lines of our own unit; None if there is none.
        enabled: Units that we enabled, without ``.service``.
        no_systemd: Whether systemd does not run this host.
    """

    daemon_off: bool = False
    own_file: tuple[str, ...] | None = None
    enabled: tuple[str, ...] = ()
    no_systemd: bool = False


_PERSISTENCE_SCRIPT = rf"""
command -v systemctl >/dev/null && $bounded systemctl show -p ExecStart {DAEMON}.service |
  grep -q -e --no-persistence-mode && echo off
[ -e {OWN_FILE} ] && {{ echo "own "; show own {OWN_FILE}; }}
show enabled {ENABLED_FILE}
case $($bounded systemctl is-system-running) in '' | offline | unknown) echo no-systemd ;; esac
"""


def read_persistence(said: Said) -> Persistence:
    """Read the section."""
    return Persistence(
        daemon_off=said.has("off"),
        own_file=own_file(said.all("own")),
        enabled=tuple(name.strip() for name in said.all("enabled") if name.strip()),
        no_systemd=said.has("no-systemd"),
    )


PERSISTENCE_SECTION = Section("persistence", _PERSISTENCE_SCRIPT, read_persistence)
