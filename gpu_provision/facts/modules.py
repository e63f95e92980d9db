"""Kernel modules: which are loaded, built in, available, and listed for the boot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.facts.section import Said, Section, number

OWN_FILE = "/etc/modules-load.d/gpu-provision.conf"

ALWAYS = ("nouveau", "nvidia", "i2c_core", "ipmi_msghandler", "ipmi_devintf", "ipmi_si", "mlx5_ib", "ib_umad")
"""Modules that are looked up whatever else is asked for."""

UNKNOWN_USERS = -1

FileLines = tuple[str, ...] | None
"""Content of a file; None for no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Kernel modules; names are written with underscores.

    Attributes:
        loaded: Loaded modules, each with the number of its users; -1 if the kernel does not say.
        built_in: Those of the modules asked for that are part of the kernel.
        available: Those of the modules asked for that the kernel could load.
        at_boot: Modules that some file lists for loading at boot.
        own_file: Lines of our own such file; None if there is none.
        directory: Whether /lib/modules has a directory for the running kernel; in most containers it has not.
    """

    loaded: Mapping[str, int] = field(default_factory=dict)
    built_in: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    at_boot: frozenset[str] = frozenset()
    own_file: tuple[str, ...] | None = None
    directory: bool = True


SCRIPT = rf"""
grep_into() {{ sed 's/:.*//' "$3" | grep -E "/($2)\.ko" | sed "s/^/$1 /"; }}
show loaded /proc/modules
grep_into builtin @PATTERN@ "$stock/modules.builtin"
grep_into available @PATTERN@ "$stock/modules.dep"
for module in @MODULES@; do
  [ -d "/sys/module/$module" ] && ! grep -q "^$module " /proc/modules && echo "builtin $module"
done
show boot /etc/modules
show boot /etc/modules-load.d/*.conf /run/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf
[ -e {OWN_FILE} ] && {{ echo "own "; show own {OWN_FILE}; }}
[ -d "$stock" ] || echo no-directory
"""


def canonical(module: str) -> str:
    """Write a module's name as the kernel does: dashes and underscores are the same to it."""
    return module.strip().replace("-", "_")


def read(said: Said) -> Modules:
    """Read the section."""
    return Modules(
        loaded=dict(_loaded(said.all("loaded"))),
        built_in=frozenset(map(_module_of, said.all("builtin"))),
        available=frozenset(map(_module_of, said.all("available"))),
        at_boot=frozenset(canonical(line) for line in said.all("boot") if _is_content(line)),
        own_file=own_file(said.all("own")),
        directory=not said.has("no-directory"),
    )


def own_file(lines: Iterable[str]) -> tuple[str, ...] | None:
    """Return the lines of a file of ours; None for no file. An empty file still says its name."""
    lines = tuple(lines)
    return tuple(line for line in lines if line.strip()) if lines else None


def _is_content(line: str) -> bool:
    return bool(line.strip()) and line.strip()[0] not in "#;"


def _loaded(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Read lines of /proc/modules: name, size, users ("-" if the kernel cannot unload), ..."""
    for line in lines:
        match line.split():
            case [name, size, users, *_] if number(size) is not None:
                count = number(users)
                yield canonical(name), UNKNOWN_USERS if count is None else count


def _module_of(path: str) -> str:
    """Return the module of ``kernel/drivers/i2c/i2c-core.ko.zst``, or of its bare name."""
    return canonical(path.strip().rsplit("/", 1)[-1].split(".ko", 1)[0])


SECTION = Section("modules", SCRIPT, read)
