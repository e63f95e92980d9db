"""By what packages can be held on this host, which ones we hold, and which ones we installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_provision.facts.originals import HOME
from gpu_provision.facts.section import Said, Section

HELD_FILE = f"{HOME}/held-packages"
"""Names of packages that we hold, one a line; holds of others are not in it."""

INSTALLED_FILE = f"{HOME}/installed-packages"
"""Names of packages that we installed, one a line, as the package manager lists them."""

VERSIONLOCK = "versionlock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What there is.

    Attributes:
        tools: Those of ``apt-mark``, ``zypper`` and ``dnf`` that are installed, and ``versionlock``, dnf's plugin.
        ours: Packages that we hold, or held until somebody released them.
        installed: Packages that we installed.
    """

    tools: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()


SCRIPT = rf"""
for tool in apt-mark zypper dnf; do command -v "$tool" >/dev/null && echo "tool $tool"; done
[ -e /etc/dnf/plugins/versionlock.conf ] && echo "tool {VERSIONLOCK}"
show ours {HELD_FILE}
show installed {INSTALLED_FILE}
"""


def read(said: Said) -> Holds:
    """Read the section."""
    return Holds(tools=tuple(said.all("tool")), ours=_names(said.all("ours")), installed=_names(said.all("installed")))


def _names(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in lines if name.strip())


SECTION = Section("holds", SCRIPT, read)
