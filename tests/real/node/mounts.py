"""Mounts of this process's mount namespace: which there are, and making more."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: what of a file system is mounted where, and the file system's own options."""

    root: str
    target: Path
    kind: str
    options: str


def mounts() -> list[Mount]:
    """Return what is mounted, in the order in which it was mounted."""
    return [parsed(line) for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def parsed(line: str) -> Mount:
    where, _, what = line.partition(" - ")
    _, _, _, root, target, *_ = where.split()
    kind, _, options = what.split(" ", 2)
    return Mount(_text(root), Path(_text(target)), kind, options)


def _text(field: str) -> str:
    return field.encode().decode("unicode_escape")


def mount(source: str | Path, target: Path, *, kind: str, options: str = "") -> None:
    chosen = ["-o", options] if options else []
    subprocess.run(["mount", "-n", "-t", kind, *chosen, str(source), str(target)], check=True)


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Show a file or folder at another place as well."""
    subprocess.run(["mount", "-n", "--bind", str(source), str(target)], check=True)
    if read_only:
        subprocess.run(["mount", "-n", "-o", "remount,bind,ro", str(target)], check=True)
