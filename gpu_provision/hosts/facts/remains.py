"""What is kept on a host of the files that were changed there: how they were, or that they were not."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import SectionOutput


@dataclass(frozen=True, slots=True)
class Original:
    """One path that was changed, and how it was before."""

    kind: str  # ``file``, ``absent`` or ``directory``
    path: str
    differs: bool  # whether it is not so any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """All that is kept."""

    kept: tuple[Original, ...] = ()  # in the order in which paths were changed first
    present: bool = False  # whether gpu-provision's directory exists
    readable: bool = True  # false if another user than root cannot look


def read_originals(output: SectionOutput) -> Originals:
    """Read the section's lines."""
    return Originals(
        kept=tuple(_original(word, rest) for word, rest in output.lines if word in {"differs", "restored"}),
        present=output.has("present"),
        readable=not output.has("unreadable"),
    )


def _original(word: str, rest: str) -> Original:
    kind, _, path = rest.partition(" ")
    return Original(kind, path, differs=word == "differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitRemains:
    """What there is."""

    files: tuple[str, ...] = ()  # paths of what the toolkit's container installed
    # directory that may be ours -> names in it; those that are there, what is below comes first
    entries: tuple[tuple[str, frozenset[str]], ...] = ()
    uses: tuple[str, ...] = ()  # what still needs the programs, in words
    is_sure: bool = True  # whether all of it could be looked at: containers show what they use to root alone

    @property
    def hollow(self) -> tuple[str, ...]:
        """Directories that hold nothing but files and directories of the stack."""
        gone = set(self.files)
        for path, names in self.entries:
            if {posixpath.join(path, name) for name in names} <= gone:
                gone.add(path)
        return tuple(path for path, _ in self.entries if path in gone)


def toolkit_command(install_dir: str, configs: Iterable[str] = ()) -> str:
    """Return the shell command that looks for programs in ``toolkit`` below a directory, and for what names them."""
    variables = scripts.assign(install_dir=install_dir.rstrip("/"), configs="\n".join(configs))
    return f"{variables}{scripts.load('toolkit.sh')}"


def parse_toolkit(lines: Iterable[str]) -> ToolkitRemains | None:
    """Read what the command printed; None if it does not go to its end."""
    output = SectionOutput(lines)
    if not output.has("end"):
        return None
    return ToolkitRemains(
        files=tuple(path for path in output.all("file") if path.startswith("/")),
        entries=_entries(output.lines),
        uses=tuple(dict.fromkeys(output.all("use"))),
        is_sure=not output.has("unsure"),
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
