"""Files of our own that hold settings of the system, and the running values that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.facts.section import Said, Section

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


SCRIPT = rf"""
for file in {SYSCTL_FILE} {LINKS_RULE} {LINKS_SCRIPT}; do
  [ -f "$file" ] && {{ echo "file $file"; sed "s#^#line $file #" "$file"; }}
done
sed -nE 's/^([^#; ]+) = .*/\1/p' {SYSCTL_FILE} | while read -r key; do
  value=/proc/sys/$(echo "$key" | tr . /)
  [ -r "$value" ] && echo "running $key $(tr '\t\n' '  ' <"$value")"
done
grep -q ' nvidia' /proc/devices && echo driver
"""


def read(said: Said) -> Settings:
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


SECTION = Section("settings", SCRIPT, read)
