"""What keeps nouveau away from the GPUs, and whether the image that boots knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_provision.facts.modules import own_file
from gpu_provision.facts.section import Said, Section

OWN_FILE = "/etc/modprobe.d/gpu-provision-nouveau.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nouveau:
    """The blacklists of nouveau, and the initramfs of the running kernel.

    Attributes:
        blacklisted_elsewhere: Whether a file that is not ours, or the kernel's command line, keeps it away.
        own_file: Lines of our own blacklist; None if there is none.
        initramfs: Path of the running kernel's image; empty for none.
        initramfs_stale: Whether our blacklist is newer than that image.
        initramfs_tool: ``update-initramfs`` or ``dracut``; empty for neither.
        in_initramfs: Whether the image holds the module; None where nobody looked. Listing an image takes
            seconds, so that is done only while nouveau is loaded.
    """

    blacklisted_elsewhere: bool = False
    own_file: tuple[str, ...] | None = None
    initramfs: str = ""
    initramfs_stale: bool = False
    initramfs_tool: str = ""
    in_initramfs: bool | None = None

    @property
    def blacklisted(self) -> bool:
        """Whether nouveau stays away after the next boot."""
        return self.blacklisted_elsewhere or _blacklists(self.own_file or ())


# Of the kernel's command line, which may hold secrets, only blacklists are read.
SCRIPT = rf"""
tr ' ' '\n' </proc/cmdline | grep -E '^(rd\.driver\.|modprobe\.|module_)blacklist=' | sed 's/^/cmdline /'
[ -e {OWN_FILE} ] && {{ echo "own "; show own {OWN_FILE}; }}
for file in /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf; do
  [ "$file" != {OWN_FILE} ] && grep -E '^[[:space:]]*(blacklist|install)[[:space:]]+nouveau' "$file" |
    sed 's/^/modprobe /'
done
for tool in update-initramfs dracut; do
  command -v "$tool" >/dev/null && {{ echo "tool $tool"; break; }}
done
for image in "/boot/initrd.img-$kernel" "/boot/initramfs-$kernel.img" "/boot/initrd-$kernel"; do
  [ -e "$image" ] || continue
  echo "initramfs $image"
  [ -n "$(find {OWN_FILE} -newer "$image")" ] && echo stale
  [ -d /sys/module/nouveau ] || break
  for list in lsinitramfs lsinitrd; do
    command -v "$list" >/dev/null || continue
    names=$($patient "$list" "$image") && {{
      echo listed
      echo "$names" | grep -q '/nouveau\.ko' && echo contains
    }}
    break
  done
  break
done
"""


def read(said: Said) -> Nouveau:
    """Read the section."""
    return Nouveau(
        blacklisted_elsewhere=_blacklists(said.all("modprobe")) or any(map(_keeps_away, said.all("cmdline"))),
        own_file=own_file(said.all("own")),
        initramfs=said.first("initramfs"),
        initramfs_stale=said.has("stale"),
        initramfs_tool=said.first("tool"),
        in_initramfs=said.has("contains") if said.has("listed") else None,
    )


def _blacklists(lines: Iterable[str]) -> bool:
    """Return whether modprobe.d lines keep nouveau away, as a blacklist or by an install command that fails."""
    words = [line.split() for line in lines]
    return any(
        line[:2] == ["blacklist", "nouveau"]
        or (line[:2] == ["install", "nouveau"] and line[2:3] in (["/bin/false"], ["/bin/true"]))
        for line in words
    )


def _keeps_away(command_line: str) -> bool:
    """Return whether a kernel command line does: a parameter of modprobe, of the kernel or of dracut."""
    found = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any("nouveau" in value.split(",") for value in found)


SECTION = Section("nouveau", SCRIPT, read)
