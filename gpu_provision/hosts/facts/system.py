"""Which operating system this is, who reads it, and what time it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.hosts.facts.section import Said, Section, number
from gpu_provision.model.inventory import OperatingSystem


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


_SYSTEM_SCRIPT = r"""
echo "time $(date +%s)"
echo "user $(id -u)"
echo "hostname $(uname -n)"
show os /etc/os-release
[ -e /run/reboot-required ] || [ -e /var/run/reboot-required ] && echo reboot-required
# SUSE and the RHEL family: their own files and tool; needs-restarting takes seconds, so it is not asked.
[ -e /run/reboot-needed ] || [ -e /boot/do_purge_kernels ] && echo reboot-required
"""


def read_system(said: Said) -> System:
    """Read the section."""
    release = _assignments(said.all("os"))
    return System(
        id=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        title=release.get("PRETTY_NAME", ""),
        hostname=said.first("hostname"),
        as_root=said.first("user") == "0",
        time=number(said.first("time")),
        reboot_required=said.has("reboot-required"),
    )


def _assignments(lines: list[str]) -> Mapping[str, str]:
    parts = (line.split("=", 1) for line in lines if "=" in line)
    return {name.strip(): value.strip("\"' ") for name, value in parts}


SYSTEM_SECTION = Section("system", _SYSTEM_SCRIPT, read_system)


@dataclass(frozen=True, slots=True)
class Clock:
    """A comparison of clocks, in seconds.

    Attributes:
        skew: By how much the host's clock is ahead of ours at least; negative if it is behind; 0 if both may agree.
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
class Confinement:
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


_CONFINEMENT_SCRIPT = r"""
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo "cgroup 2"; elif [ -e /proc/cgroups ]; then echo "cgroup 1"; fi
[ -r /sys/fs/selinux/enforce ] && sed 's/^/selinux /' /sys/fs/selinux/enforce
[ -r /etc/selinux/config ] && sed -n 's/^SELINUX=/configured /p' /etc/selinux/config
[ -r /sys/module/apparmor/parameters/enabled ] && sed 's/^/apparmor /' /sys/module/apparmor/parameters/enabled
"""

_SELINUX = {"1": "enforcing", "0": "permissive"}


def read_confinement(said: Said) -> Confinement:
    """Read the section."""
    configured = said.first("configured")
    return Confinement(
        cgroup=number(said.first("cgroup")) or 0,
        selinux=_SELINUX.get(said.first("selinux"), "disabled" if configured else ""),
        selinux_configured=configured,
        apparmor=said.first("apparmor") == "Y",
    )


CONFINEMENT_SECTION = Section("confinement", _CONFINEMENT_SCRIPT, read_confinement)

_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware:
    """What the firmware and the kernel say about signatures.

    Attributes:
        efi: Whether the host was booted by UEFI.
        secure_boot: Whether Secure Boot is on; None if nobody could say.
        source: What said so, as it was read.
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


# The variable holds four bytes of attributes, then the value.
_FIRMWARE_SCRIPT = rf"""
[ -d /sys/firmware/efi ] && echo efi
variable=/sys/firmware/efi/efivars/{_SECURE_BOOT}
[ -r "$variable" ] && echo "efivar $(od -An -v -t u1 "$variable" | tr -s ' \n' ' ')"
if command -v mokutil >/dev/null; then
  $bounded mokutil --sb-state 2>&1 | sed 's/^/mokutil /'
  $bounded mokutil --list-enrolled | sed -nE 's/^[[:space:]]*Subject:[[:space:]]*/key /p'
fi
[ -r /sys/kernel/security/lockdown ] && sed 's/^/lockdown /' /sys/kernel/security/lockdown
[ -r /sys/module/module/parameters/sig_enforce ] && sed 's/^/enforce /' /sys/module/module/parameters/sig_enforce
"""


def read_firmware(said: Said) -> Firmware:
    """Read the section; the firmware's own variable counts more than mokutil."""
    on, source = _secure_boot(said)
    lockdown = re.search(r"\[(\w+)\]", said.first("lockdown"))
    return Firmware(
        efi=said.has("efi"),
        secure_boot=on,
        source=source,
        lockdown=lockdown[1] if lockdown else "",
        signatures_enforced=said.first("enforce") in {"Y", "1"},
        keys=tuple(said.all("key")),
    )


def _secure_boot(said: Said) -> tuple[bool | None, str]:
    variable = said.first("efivar").split()
    if variable:
        return variable[-1] == "1", f"efivar SecureBoot: {' '.join(variable)}"
    state = next((line for line in said.all("mokutil") if line.startswith("SecureBoot ")), "")
    if state:
        return state.endswith("enabled"), f"mokutil --sb-state: {state}"
    return (None, "") if said.has("efi") else (False, "not booted by UEFI")


FIRMWARE_SECTION = Section("firmware", _FIRMWARE_SCRIPT, read_firmware)


@dataclass(frozen=True, slots=True)
class Ipmi:
    """IPMI's device nodes, such as ``/dev/ipmi0``, and whether the kernel has found an interface to a BMC."""

    devices: tuple[str, ...] = ()
    interface: bool = False


_IPMI_SCRIPT = r"""
for device in /dev/ipmi[0-9]* /dev/ipmi/[0-9]*; do [ -e "$device" ] && echo "device $device"; done
for interface in /sys/class/ipmi/ipmi* /sys/bus/platform/drivers/ipmi_si/*[0-9]; do
  [ -e "$interface" ] && { echo interface; break; }
done
"""


def read_ipmi(said: Said) -> Ipmi:
    """Read the section."""
    return Ipmi(tuple(said.all("device")), said.has("interface"))


IPMI_SECTION = Section("ipmi", _IPMI_SCRIPT, read_ipmi)

SYSCTL_FILE = "/etc/sysctl.d/90-gpu-provision.conf"
LINKS_RULE = "/etc/udev/rules.d/71-gpu-provision-dev-char.rules"
LINKS_SCRIPT = "/etc/gpu-provision/dev-char-symlinks.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is set by files of ours.

    Attributes:
        files: Lines of each such file that is there.
        running: Running values of the kernel parameters that our file sets.
        driver_loaded: Whether an NVIDIA driver has registered its devices.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)
    driver_loaded: bool = False


_SETTINGS_SCRIPT = rf"""
for file in {SYSCTL_FILE} {LINKS_RULE} {LINKS_SCRIPT}; do
  [ -f "$file" ] && {{ echo "file $file"; sed "s#^#line $file #" "$file"; }}
done
sed -nE 's/^([^#; ]+) = .*/\1/p' {SYSCTL_FILE} | while read -r key; do
  value=/proc/sys/$(echo "$key" | tr . /)
  [ -r "$value" ] && echo "running $key $(tr '\t\n' '  ' <"$value")"
done
grep -q ' nvidia' /proc/devices && echo driver
"""


def read_settings(said: Said) -> Settings:
    """Read the section."""
    files: dict[str, list[str]] = {path: [] for path in said.all("file")}
    for rest in said.all("line"):
        path, _, line = rest.partition(" ")
        files.setdefault(path, []).append(line)
    running = (rest.partition(" ") for rest in said.all("running"))
    return Settings(
        files={path: tuple(lines) for path, lines in files.items()},
        running={key: " ".join(value.split()) for key, _, value in running},
        driver_loaded=said.has("driver"),
    )


SETTINGS_SECTION = Section("settings", _SETTINGS_SCRIPT, read_settings)
