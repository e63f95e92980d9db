"""What is kept on a host of the files that were changed there: how they were, or that they were not."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.hosts.facts.parser import SectionOutput


@dataclass(frozen=True, slots=True)
class Original:
    """One path that was changed, and how it was before.

    Attributes:
        kind: ``file``, ``absent`` or ``directory``.
        differs: Whether it is not so any more.
    """

    kind: str
    path: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """All that is kept.

    Attributes:
        kept: In the order in which paths were changed first.
        present: Whether anything of ours is there, a file or not.
        readable: False if another user than root cannot look.
    """

    kept: tuple[Original, ...] = ()
    present: bool = False
    readable: bool = True


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
