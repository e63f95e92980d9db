"""Secure Boot, kernel lockdown, and whether unsigned modules may be loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section

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
SCRIPT = rf"""
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


def read(said: Said) -> Firmware:
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


SECTION = Section("firmware", SCRIPT, read)
