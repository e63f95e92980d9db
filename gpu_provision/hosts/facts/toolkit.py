"""What containers of the stack have left on a host: the toolkit's programs, its file of CDI, empty directories."""

from __future__ import annotations

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_provision.hosts.facts.section import Said

_RUN = (
    "/run/nvidia/validations",
    "/run/nvidia/toolkit",
    "/run/nvidia/mps/shm",
    "/run/nvidia/mps",
    "/run/nvidia/driver/lib/firmware",
    "/run/nvidia/driver/lib",
    "/run/nvidia/driver",
    "/run/nvidia",
    "/run/nvidia-fabricmanager",
    "/run/nvidia-topologyd",
)
"""Directories that the stack's pods have made where they were not there; what is below comes first."""

# A name that any other program could have is not among them.
_PROGRAMS = ("nvidia-container-*", "libnvidia-container*", "nvidia-ctk*", "nvidia-cdi-hook*")
_CONFIG = ".config/nvidia-container-runtime"
_CDI = "/run/cdi/management.nvidia.com-gpu.yaml"
_CONFIGS = (
    "/etc/containerd/config.toml",
    "/etc/containerd/conf.d/*",
    "/etc/crio/crio.conf",
    "/etc/crio/crio.conf.d/*",
    "/etc/docker/daemon.json",
    "/run/containers/oci/hooks.d/*",
    "/usr/share/containers/oci/hooks.d/*",
)
"""Where the toolkit writes by default; also of a runtime that does not run right now."""

# Where containerd and its distributions keep what they need of each container that runs.
_BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task/*/*",
    "/run/*/containerd/io.containerd.runtime.v2.task/*/*",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitRemains:
    """What there is.

    Attributes:
        files: Paths of what the toolkit's container installed.
        entries: Directory that may be ours -> names in it; those that are there, what is below comes first.
        uses: What still needs the programs, in words.
        is_sure: Whether all of it could be looked at: containers show what they use to root alone.
    """

    files: tuple[str, ...] = ()
    entries: tuple[tuple[str, frozenset[str]], ...] = ()
    uses: tuple[str, ...] = ()
    is_sure: bool = True

    @property
    def hollow(self) -> tuple[str, ...]:
        """Directories that hold nothing but files and directories of ours."""
        gone = set(self.files)
        for path, names in self.entries:
            if {posixpath.join(path, name) for name in names} <= gone:
                gone.add(path)
        return tuple(path for path, _ in self.entries if path in gone)


def command(install_dir: str, configs: Iterable[str] = ()) -> str:
    """Return the shell command that looks for it; it writes nothing.

    The path of the programs is put together by the shell, so that a command line with it is not that of this command.

    Args:
        install_dir: Absolute; the programs are in ``toolkit`` below it.
        configs: More files of container runtimes, which may name the programs.
    """
    return rf"""
home={shlex.quote(install_dir.rstrip("/"))}
programs=$home/toolkit
[ "$(id -u)" = 0 ] || echo 'unsure '
for file in {" ".join(f'"$programs"/{name}' for name in _PROGRAMS)} "$programs"/{_CONFIG}/config.toml {_CDI}; do
  if [ -f "$file" ] || [ -L "$file" ]; then echo "file $file"; fi
done
for folder in "$programs"/{_CONFIG} "$programs"/.config "$programs" "$home" {" ".join(_RUN)}; do
  [ -d "$folder" ] && [ ! -L "$folder" ] && {{
    echo "folder $folder"
    ls -A "$folder" | head -n 200 | sed "s|^|entry |"
  }}
done
for file in {shlex.join(configs)} {" ".join(_CONFIGS)}; do
  grep -qsF "$programs/" "$file" && echo "use $file names them"
done
for bundle in {" ".join(_BUNDLES)}; do
  grep -qsF "$programs/" "$bundle/runtime" "$bundle/options.json" && echo "use container ${{bundle##*/}} runs with them"
done
for process in /proc/[0-9]*; do
  grep -qsF "$programs/" "$process/cmdline" && echo "use process ${{process#/proc/}} runs with them"
done
echo 'end '
""".strip()


def parse(output: Iterable[str]) -> ToolkitRemains | None:
    """Read what the command printed; None if it does not go to its end."""
    said = Said(output)
    if not said.has("end"):
        return None
    return ToolkitRemains(
        files=tuple(path for path in said.all("file") if path.startswith("/")),
        entries=_entries(said.lines),
        uses=tuple(dict.fromkeys(said.all("use"))),
        is_sure=not said.has("unsure"),
    )


def _entries(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, frozenset[str]], ...]:
    found: dict[str, set[str]] = defaultdict(set)
    folder = ""
    for word, rest in lines:
        if word == "folder":
            folder = rest
            found[folder] = set()
        elif word == "entry":
            found[folder].add(rest)
    return tuple((path, frozenset(names)) for path, names in found.items() if path.startswith("/"))
