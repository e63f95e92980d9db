"""Limits of the container runtimes' processes: containers begin with them, since Kubernetes sets none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.facts.section import Said, Section, number

DROP_IN = "90-gpu-provision-limits.conf"
DROP_INS = "/etc/systemd/system"

NAMES: Mapping[str, str] = {
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "nproc": "Max processes",
    "rtprio": "Max realtime priority",
}
"""Names of limits as ulimits and inventories have them -> as the kernel prints them."""

UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Limited:
    """A process of a container runtime.

    Attributes:
        pid: Its process id.
        name: ``containerd``, ``crio`` or ``dockerd``.
        unit: Unit of systemd that it belongs to, with ``.service``; empty for none.
        limits: Name -> (soft, hard), each a number or ``unlimited``.
    """

    pid: int
    name: str
    unit: str
    limits: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is limited.

    Attributes:
        runtimes: Processes of container runtimes.
        files: Our drop-ins of units: path -> lines.
    """

    runtimes: tuple[Limited, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PRINTED = "; ".join(rf"s/^{printed} +([^ ]+) +([^ ]+).*/{name} \1 \2/p" for name, printed in NAMES.items())

SCRIPT = rf"""
for process in /proc/[0-9]*; do
  read -r name <"$process/comm" || continue
  case $name in containerd | crio | dockerd) by_root "$process" || continue ;; *) continue ;; esac
  unit=$(sed -nE 's/^.*\/([^/]*\.service)(\/.*)?$/\1/p' "$process/cgroup" | head -n 1)
  sed -nE '{_PRINTED}' "$process/limits" | sed "s/^/limit ${{process##*/}} $name ${{unit:--}} /"
done
for file in {DROP_INS}/*.service.d/{DROP_IN}; do
  [ -f "$file" ] && {{ echo "file $file"; sed "s#^#line $file #" "$file"; }}
done
true
"""


def read(said: Said) -> Limits:
    """Read the section."""
    files: dict[str, tuple[str, ...]] = dict.fromkeys(said.all("file"), ())
    for rest in said.all("line"):
        path, _, line = rest.partition(" ")
        files[path] = (*files.get(path, ()), line)
    return Limits(runtimes=tuple(_runtimes(said.all("limit"))), files=files)


def _runtimes(lines: list[str]) -> list[Limited]:
    found: dict[int, Limited] = {}
    for line in lines:
        match line.split():
            case [word, name, unit, limit, soft, hard] if (pid := number(word)) and limit in NAMES:
                known = found.get(pid, Limited(pid, name, unit.strip("-"), {}))
                found[pid] = Limited(known.pid, known.name, known.unit, {**known.limits, limit: (soft, hard)})
    return list(found.values())


SECTION = Section("limits", SCRIPT, read)
