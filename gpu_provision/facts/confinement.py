"""Control groups, SELinux, AppArmor: what confines containers on this host."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section, number


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


SCRIPT = r"""
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo "cgroup 2"; elif [ -e /proc/cgroups ]; then echo "cgroup 1"; fi
[ -r /sys/fs/selinux/enforce ] && sed 's/^/selinux /' /sys/fs/selinux/enforce
[ -r /etc/selinux/config ] && sed -n 's/^SELINUX=/configured /p' /etc/selinux/config
[ -r /sys/module/apparmor/parameters/enabled ] && sed 's/^/apparmor /' /sys/module/apparmor/parameters/enabled
"""

_SELINUX = {"1": "enforcing", "0": "permissive"}


def read(said: Said) -> Confinement:
    """Read the section."""
    configured = said.first("configured")
    return Confinement(
        cgroup=number(said.first("cgroup")) or 0,
        selinux=_SELINUX.get(said.first("selinux"), "disabled" if configured else ""),
        selinux_configured=configured,
        apparmor=said.first("apparmor") == "Y",
    )


SECTION = Section("confinement", SCRIPT, read)
