"""By what packages can be held on this host, and which ones we hold."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.originals import HOME
from gpu_provision.facts.section import Said, Section

HELD_FILE = f"{HOME}/held-packages"
"""Names of packages that we hold, one a line; holds of others are not in it."""

VERSIONLOCK = "versionlock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What there is.

    Attributes:
        tools: Those of ``apt-mark``, ``zypper`` and ``dnf`` that are installed, and ``versionlock``, dnf's plugin.
        ours: Packages that we hold, or held until somebody released them.
    """

    tools: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()


SCRIPT = rf"""
for tool in apt-mark zypper dnf; do command -v "$tool" >/dev/null && echo "tool $tool"; done
[ -e /etc/dnf/plugins/versionlock.conf ] && echo "tool {VERSIONLOCK}"
show ours {HELD_FILE}
"""


def read(said: Said) -> Holds:
    """Read the section."""
    return Holds(tools=tuple(said.all("tool")), ours=tuple(name.strip() for name in said.all("ours") if name.strip()))


SECTION = Section("holds", SCRIPT, read)
