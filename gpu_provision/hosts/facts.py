"""The fact about a host: everything that the operations want to know, in one shell command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyinfra.api.facts import FactBase

from gpu_provision.hosts.record import HostRecord, canonical, parse

MODULES_FILE = "/etc/modules-load.d/gpu-provision.conf"
NOUVEAU_FILE = "/etc/modprobe.d/gpu-provision-nouveau.conf"

# POSIX sh, coreutils and grep, sed, find; no lspci, no Python, no rights that an ordinary user lacks.
# Each line of output begins with a word that says what the rest is.
_SCRIPT = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
kernel=$(uname -r)
stock=/lib/modules/$kernel
show() { word=$1; shift; for file in "$@"; do [ -r "$file" ] && { sed "s/^/$word /" "$file"; echo; }; done; }
grep_into() { sed 's/:.*//' "$3" 2>/dev/null | grep -E "/($2)\.ko" | sed "s/^/$1 /"; }
echo "kernel $kernel"
echo "architecture $(uname -m)"
show os /etc/os-release
show loaded /proc/modules
tr ' ' '\n' 2>/dev/null </proc/cmdline | grep -E '^(rd\.driver\.|modprobe\.|module_)blacklist=' | sed 's/^/cmdline /'
grep_into builtin '@PATTERN@' "$stock/modules.builtin"
grep_into available '@PATTERN@' "$stock/modules.dep"
for module in @MODULES@; do
  [ -d "/sys/module/$module" ] && ! grep -q "^$module " /proc/modules 2>/dev/null && echo "builtin $module"
done
show boot /etc/modules
show boot /etc/modules-load.d/*.conf /run/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf
[ -e @MODULES_FILE@ ] && { echo "own-modules "; show own-modules @MODULES_FILE@; }
[ -e @NOUVEAU_FILE@ ] && { echo "own-nouveau "; show own-nouveau @NOUVEAU_FILE@; }
for file in /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf; do
  [ "$file" != @NOUVEAU_FILE@ ] && grep -E '^[[:space:]]*(blacklist|install)[[:space:]]+nouveau' "$file" |
    sed 's/^/modprobe /'
done 2>/dev/null
for image in "/boot/initrd.img-$kernel" "/boot/initramfs-$kernel.img" "/boot/initrd-$kernel"; do
  [ -e "$image" ] || continue
  echo "initramfs $image"
  [ -n "$(find @NOUVEAU_FILE@ -newer "$image" 2>/dev/null)" ] && echo "initramfs-stale"
  break
done
for tool in update-initramfs dracut; do
  command -v "$tool" >/dev/null 2>&1 && { echo "initramfs-tool $tool"; break; }
done
for device in /sys/bus/pci/devices/*; do
  read -r vendor <"$device/vendor" || continue
  [ "$vendor" = 0x10de ] || continue
  driver=$(readlink "$device/driver")
  echo "nvidia ${device##*/} $(cat "$device/device") $(cat "$device/class") ${driver##*/}"
done 2>/dev/null
[ -e /run/reboot-required ] || [ -e /var/run/reboot-required ] && echo "reboot-required"
exit 0
"""


class GpuHost(FactBase[HostRecord | None]):
    """What a host is, for the modules asked about and nouveau; None if it did not even name its kernel."""

    def command(self, modules: Sequence[str] = ()) -> str:
        """Return the script; each module is looked up with dashes and with underscores."""
        names = [canonical(module) for module in modules]
        pattern = "|".join(re.escape(name).replace("_", "[-_]") for name in [*names, "nouveau"])
        script = _SCRIPT.replace("@PATTERN@", pattern).replace("@MODULES@", " ".join([*names, "nouveau"]))
        return script.replace("@MODULES_FILE@", MODULES_FILE).replace("@NOUVEAU_FILE@", NOUVEAU_FILE).strip()

    @staticmethod
    def default() -> HostRecord | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> HostRecord | None:
        """Read the script's output."""
        return parse(output)
