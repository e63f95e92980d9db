"""What is kept on a host of the files that were changed there: how they were, or that they were not."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.hosts.facts.section import Said, Section

HOME = "/var/lib/gpu-provision"
"""Directory of all that is kept on a host."""

STORE = f"{HOME}/originals"
"""``list`` names every path once, with its kind; ``files`` holds the originals under their own paths."""

FILE, ABSENT, DIRECTORY = "file", "absent", "directory"
"""Kinds: there was such a file; there was none; there was no such directory."""


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


# Content by its checksum, mode and owner by ls: neither cmp nor stat is everywhere.
SAME = r"""
attributes() { set -- $(ls -ldn "$1"); echo "${1%[.+]} $3 $4"; }
same() {
  if [ -L "$1" ] || [ -L "$2" ]; then
    [ "$(readlink "$1")" = "$(readlink "$2")" ]
  else
    [ "$(cksum <"$1")" = "$(cksum <"$2")" ] && [ "$(attributes "$1")" = "$(attributes "$2")" ]
  fi
}
"""
SCRIPT = rf"""
{SAME}
store={STORE}
[ -d {HOME} ] && echo "present {HOME}"
[ -d "$store" ] && [ ! -x "$store" ] && echo "unreadable $store"
differs() {{
  case $1 in
    {FILE}) ! same "$store/files$2" "$2" ;;
    {ABSENT}) [ -e "$2" ] || [ -L "$2" ] ;;
    *) [ -d "$2" ] ;;
  esac
}}
[ -r "$store/list" ] && while read -r kind path; do
  if differs "$kind" "$path"; then echo "differs $kind $path"; else echo "restored $kind $path"; fi
done <"$store/list"
"""


def read(said: Said) -> Originals:
    """Read the section."""
    return Originals(
        kept=tuple(_original(word, rest) for word, rest in said.lines if word in {"differs", "restored"}),
        present=said.has("present"),
        readable=not said.has("unreadable"),
    )


def _original(word: str, rest: str) -> Original:
    kind, _, path = rest.partition(" ")
    return Original(kind, path, differs=word == "differs")


ORIGINALS_SECTION = Section("originals", SCRIPT, read)
