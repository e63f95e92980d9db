"""Proxies that some part of the system is configured to use. Credentials stay on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.hosts.facts.parser import SectionOutput, number
from gpu_provision.model.inventory import OperatingSystem


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxy settings by the file that has them; no value holds a user's name or password."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, *names: str) -> tuple[str, ...]:
        """Return the values of settings by name, upper or lower case, each once."""
        wanted = {name.lower() for name in names}
        found = (value for file in self.settings.values() for name, value in file.items() if name.lower() in wanted)
        return tuple(dict.fromkeys(value for value in found if value))


def read_proxies(output: SectionOutput) -> Proxies:
    """Read the section's lines."""
    found: dict[str, dict[str, str]] = {}
    for line in output.all("setting"):
        path, _, text = line.partition(":")
        if text.strip().startswith(("#", "//")):
            continue
        for name, value in _proxy_assignments(text):
            found.setdefault(path, {})[name] = without_credentials(value)
    return Proxies(found)


def without_credentials(value: str) -> str:
    """Return a proxy's address without user name and password, however it is written."""
    return re.sub(r"^([a-z0-9+.-]+://)?\S*@", lambda found: found[1] or "", value)


def _proxy_assignments(text: str) -> list[tuple[str, str]]:
    """Read shell assignments, systemd's ``Environment=``, dnf's ``proxy=`` and apt's ``Acquire::http::Proxy``."""
    apt = re.search(r'Acquire::(https?)::Proxy[^"]*"([^"]*)"', text, re.IGNORECASE)
    if apt:
        return [(f"{apt[1].lower()}_proxy", apt[2])]
    dnf = re.fullmatch(r"\s*proxy\s*=\s*(\S*)\s*", text)
    if dnf:
        return [("http_proxy", dnf[1])]
    return re.findall(r"(?:\b|CONTAINERD_)((?:https?|ftp|no|all)_proxy)=[\"']?([^\"'\s]*)", text, re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The operating system.

    Attributes:
        id: ``ID`` of /etc/os-release, such as ``ubuntu``; empty if unknown.
        version: ``VERSION_ID`` of /etc/os-release.
        title: ``PRETTY_NAME``.
        hostname: What the host calls itself.
        as_root: Whether the reader was root: others do not see everything.
        time: Seconds since the epoch by the host's own clock; None if it did not say.
        reboot_required: Whether the system itself asks for a reboot.
    """

    id: str = ""
    version: str = ""
    title: str = ""
    hostname: str = ""
    as_root: bool = False
    time: int | None = None
    reboot_required: bool = False

    @property
    def name(self) -> OperatingSystem | None:
        """The system as inventories name it; None if unknown."""
        return OperatingSystem(self.id, self.version) if self.id else None


def read_system(output: SectionOutput) -> System:
    """Read the section's lines."""
    release = _assignments(output.all("os"))
    return System(
        id=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        title=release.get("PRETTY_NAME", ""),
        hostname=output.first("hostname"),
        as_root=output.first("user") == "0",
        time=number(output.first("time")),
        reboot_required=output.has("reboot-required"),
    )


def _assignments(lines: list[str]) -> Mapping[str, str]:
    parts = (line.split("=", 1) for line in lines if "=" in line)
    return {name.strip(): value.strip("\"' ") for name, value in parts}


@dataclass(frozen=True, slots=True)
class Clock:
    """A comparison of clocks, in seconds.

    Attributes:
        skew: By how much the host's clock is ahead at least; negative if it is behind; 0 if both clocks may agree.
        round_trip: Between question and answer: the skew may be larger by that.
        compared: Whether anybody compared.
    """

    skew: float = 0.0
    round_trip: float = 0.0
    compared: bool = False


def clock_of(system: System | None, asked_at: float, answered_at: float) -> Clock:
    """Compare the host's time, cut to whole seconds, with when we asked and when we had the answer."""
    if system is None or system.time is None or not asked_at:
        return Clock()
    ahead = system.time - answered_at
    behind = system.time + 1 - asked_at
    skew = ahead if ahead > 0 else min(behind, 0.0)
    return Clock(skew, answered_at - asked_at, compared=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityModules:
    """What confines containers.

    Attributes:
        cgroup: 1 or 2; 0 if unknown. A hybrid of both counts as 1.
        selinux: ``enforcing``, ``permissive``, ``disabled``; empty if the kernel has none.
        selinux_configured: What its configuration says for the next boot.
        apparmor: Whether AppArmor is enabled.
    """

    cgroup: int = 0
    selinux: str = ""
    selinux_configured: str = ""
    apparmor: bool = False


_SELINUX = {"1": "enforcing", "0": "permissive"}


def read_confinement(output: SectionOutput) -> SecurityModules:
    """Read the section's lines."""
    configured = output.first("configured")
    return SecurityModules(
        cgroup=number(output.first("cgroup")) or 0,
        selinux=_SELINUX.get(output.first("selinux"), "disabled" if configured else ""),
        selinux_configured=configured,
        apparmor=output.first("apparmor") == "Y",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware:
    """What the firmware and the kernel say about signatures.

    Attributes:
        efi: Whether the host was booted by UEFI.
        secure_boot: Whether Secure Boot is on; None if unknown.
        source: What output so, as it was read.
        lockdown: ``none``, ``integrity`` or ``confidentiality``; empty if the kernel does not say.
        signatures_enforced: Whether the kernel refuses modules without a valid signature by its own setting.
        keys: Subjects of the enrolled machine owner keys.
    """

    efi: bool = False
    secure_boot: bool | None = None
    source: str = ""
    lockdown: str = ""
    signatures_enforced: bool = False
    keys: tuple[str, ...] = ()

    @property
    def refuses_unsigned(self) -> bool:
        """Whether a module without a signature that this machine trusts cannot be loaded."""
        return bool(self.secure_boot) or self.signatures_enforced or self.lockdown in {"integrity", "confidentiality"}


def read_firmware(output: SectionOutput) -> Firmware:
    """Read the section's lines; the firmware's own variable counts more than mokutil."""
    on, source = _secure_boot(output)
    lockdown = re.search(r"\[(\w+)\]", output.first("lockdown"))
    return Firmware(
        efi=output.has("efi"),
        secure_boot=on,
        source=source,
        lockdown=lockdown[1] if lockdown else "",
        signatures_enforced=output.first("enforce") in {"Y", "1"},
        keys=tuple(output.all("key")),
    )


def _secure_boot(output: SectionOutput) -> tuple[bool | None, str]:
    variable = output.first("efivar").split()
    if variable:
        return variable[-1] == "1", f"efivar SecureBoot: {' '.join(variable)}"
    state = next((line for line in output.all("mokutil") if line.startswith("SecureBoot ")), "")
    if state:
        return state.endswith("enabled"), f"mokutil --sb-state: {state}"
    return (None, "") if output.has("efi") else (False, "not booted by UEFI")


@dataclass(frozen=True, slots=True)
class Ipmi:
    """IPMI's device nodes, such as ``/dev/ipmi0``, and whether the kernel has found an interface to a BMC."""

    devices: tuple[str, ...] = ()
    interface: bool = False


def read_ipmi(output: SectionOutput) -> Ipmi:
    """Read the section's lines."""
    return Ipmi(tuple(output.all("device")), output.has("interface"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What gpu-provision's files set.

    Attributes:
        files: Lines of each such file that is there.
        running: Running values of the kernel parameters that our file sets.
        driver_loaded: Whether an NVIDIA driver has registered its devices.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)
    driver_loaded: bool = False


def read_settings(output: SectionOutput) -> Settings:
    """Read the section's lines."""
    running = (rest.partition(" ") for rest in output.all("running"))
    return Settings(
        files=output.files(),
        running={key: " ".join(value.split()) for key, _, value in running},
        driver_loaded=output.has("driver"),
    )
