"""Settings of the system as files of our own, decided from a host's record alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.hosts.facts.kernel import FileLines
from gpu_provision.hosts.facts.system import (
    LINKS_RULE,
    LINKS_SCRIPT,
    SYSCTL_FILE,
    Settings,
)

SYSCTL_HEADER = "# Written by gpu-provision: kernel parameters that GPU nodes need."

# udev hears of the driver before it has registered its majors: hence the waiting, which ends as soon as it has.
_LINKS_LINES = tuple(
    r"""# Written by gpu-provision: links in /dev/char let runc find the GPUs' device nodes by number. Without them, a
# container that got its GPUs by a hook loses them when systemd reloads its units.
proc=${1:-/proc} sys=${2:-/sys} char=${3:-/dev/char}
link() { [ -e "$char/$1" ] || [ -L "$char/$1" ] || ln -s "../$2" "$char/$1"; }
registered() { grep -qE "^ *[0-9]+ $1\$" "$proc/devices"; }
tries=5
while [ "$tries" -gt 0 ]; do
  if [ ! -d "$sys/module/nvidia_uvm" ] || registered nvidia-uvm; then registered 'nvidia(-frontend)?' && break; fi
  tries=$((tries - 1))
  sleep 1
done
mkdir -p "$char" || exit
while read -r major name; do
  case $name in
    nvidia | nvidia-frontend)
      link "$major:255" nvidiactl
      link "$major:254" nvidia-modeset
      minor=0
      for gpu in "$proc"/driver/nvidia/gpus/*; do
        [ -d "$gpu" ] && link "$major:$minor" "nvidia$minor"
        minor=$((minor + 1))
      done ;;
    nvidia-uvm) link "$major:0" nvidia-uvm; link "$major:1" nvidia-uvm-tools ;;
    nvidia-caps)
      find "$proc/driver/nvidia/capabilities" -type f | while read -r file; do
        minor=$(sed -n 's/^DeviceFileMinor: *//p' "$file")
        [ -n "$minor" ] && link "$major:$minor" "nvidia-caps/nvidia-cap$minor"
      done ;;
  esac
done <"$proc/devices"
exit 0""".splitlines()
)
_RULE_LINES = (
    "# Written by gpu-provision: see the script.",
    *(
        f'ACTION=="add", DEVPATH=="{path}", RUN+="/bin/sh {LINKS_SCRIPT}"'
        for path in ("/bus/pci/drivers/nvidia", "/module/nvidia_uvm")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanges:
    """What is missing for the settings to be in force, now and after a boot.

    Attributes:
        files: Path -> what it shall hold, of the files that hold something else; None for no file.
        sysctls: Kernel parameters whose running value is another one.
        links: Whether links to devices are to be made now.
        words: Every change in words; empty for none.
    """

    files: Mapping[str, FileLines]
    sysctls: Mapping[str, str]
    links: bool
    words: tuple[str, ...]

    @property
    def rules(self) -> bool:
        """Whether udev has to read its rules anew."""
        return LINKS_RULE in self.files


def settings_changes(known: Settings, *, sysctls: Mapping[str, str], links: bool) -> SettingsChanges:
    """Return what is missing.

    Args:
        known: What there is.
        sysctls: Kernel parameters by name.
        links: Whether links in /dev/char are made whenever a driver loads.
    """
    wanted = {
        SYSCTL_FILE: sysctl_lines(sysctls),
        LINKS_SCRIPT: _LINKS_LINES if links else None,
        LINKS_RULE: _RULE_LINES if links else None,
    }
    files = {path: lines for path, lines in wanted.items() if known.files.get(path) != lines}
    running = {key: value for key, value in sysctls.items() if known.running.get(key) != _normal(value)}
    return SettingsChanges(
        files=files,
        sysctls=running,
        links=links and LINKS_SCRIPT in files and known.driver_loaded,
        words=tuple(_words(files, running, links=links)),
    )


def _words(files: Mapping[str, FileLines], running: Mapping[str, str], *, links: bool) -> list[str]:
    told = []
    if running:
        told.append(f"kernel parameters set: {', '.join(f'{key}={value}' for key, value in running.items())}")
    if SYSCTL_FILE in files:
        told.append(f"kernel parameters {'kept for the boot' if files[SYSCTL_FILE] else 'no longer kept for the boot'}")
    if LINKS_RULE in files or LINKS_SCRIPT in files:
        told.append("GPUs linked in /dev/char" if links else "GPUs no longer linked in /dev/char")
    return told


def sysctl_lines(sysctls: Mapping[str, str]) -> FileLines:
    """Return our file of kernel parameters; None for none."""
    return (SYSCTL_HEADER, *(f"{key} = {value}" for key, value in sysctls.items())) if sysctls else None


def set_now(sysctls: Mapping[str, str]) -> str:
    """Return the shell command that sets kernel parameters; it fails with the name of one that does not exist."""
    return " && ".join(_set(key, value) for key, value in sysctls.items())


def _set(key: str, value: str) -> str:
    path = shlex.quote(f"/proc/sys/{key.replace('.', '/')}")
    missing = shlex.quote(f"this kernel has no parameter {key}")
    return f"{{ [ -e {path} ] || {{ echo {missing} >&2; false; }}; }} && printf '%s\\n' {shlex.quote(value)} >{path}"


def _normal(value: str) -> str:
    return " ".join(value.split())
