"""The kernels that are installed, and the one that will run after the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpu_provision.facts.section import Said, Section


class Certainty(StrEnum):
    """How sure a conclusion is."""

    KNOWN = "known"  # the boot loader itself says so
    LIKELY = "likely"  # a convention of the distribution says so
    GUESSED = "guessed"  # the newest is taken


@dataclass(frozen=True, slots=True)
class NextKernel:
    """The kernel that boots next: its release, how sure that is, and what says so."""

    release: str
    certainty: Certainty
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Installed kernels.

    Attributes:
        installed: Releases with modules in /lib/modules.
        bootable: Those of them whose image is there, too.
        with_headers: Those of them that modules can be built for.
        headers_offered: Whether the package manager's lists have the running kernel's headers; None if unknown.
        next: What boots next; None if nothing tells.
    """

    installed: tuple[str, ...] = ()
    bootable: tuple[str, ...] = ()
    with_headers: tuple[str, ...] = ()
    headers_offered: bool | None = None
    next: NextKernel | None = None


# Package lists may be compressed, or not there: then nothing is said about headers.
SCRIPT = r"""
for directory in /lib/modules/*; do
  release=${directory##*/}
  [ -e "$directory/modules.dep" ] || continue
  echo "installed $release"
  for image in vmlinuz vmlinux Image image vmlinuz.gz; do
    [ -e "/boot/$image-$release" ] || [ -e "$directory/$image" ] && { echo "bootable $release"; break; }
  done
  [ -e "$directory/build/Makefile" ] && echo "headers $release"
done
for link in /boot/vmlinuz /boot/Image /boot/image /vmlinuz; do
  target=$(readlink "$link") && echo "link $link $target"
done
command -v grubby >/dev/null && $bounded grubby --default-kernel | sed 's/^/grubby /'
sed -n 's/^saved_entry=/saved /p' /boot/grub/grubenv /boot/grub2/grubenv
cat /etc/default/grub /etc/default/grub.d/*.cfg | sed -nE 's/^[[:space:]]*GRUB_DEFAULT=/default /p'
for menu in /boot/grub/grub.cfg /boot/grub2/grub.cfg; do
  sed -nE 's/^[[:space:]]*linux(efi|16)?[[:space:]]+([^[:space:]]+).*/menu \2/p' "$menu" | head -n 1
done
for lists in /var/lib/apt/lists/*_Packages; do
  [ -e "$lists" ] || continue
  echo "lists apt"
  grep -qx "Package: linux-headers-$kernel" /var/lib/apt/lists/*_Packages && echo "offered linux-headers-$kernel"
  break
done
"""


def read(said: Said) -> Kernels:
    """Read the section."""
    return Kernels(
        installed=tuple(said.all("installed")),
        bootable=tuple(said.all("bootable")),
        with_headers=tuple(said.all("headers")),
        headers_offered=said.has("offered") if said.has("lists") else None,
        next=next(_candidates(said), None),
    )


def _candidates(said: Said) -> Iterator[NextKernel]:
    """Yield what tells the next kernel, most reliable first."""
    installed = said.all("installed")
    grubby = _release(said.first("grubby"), installed)
    if grubby:
        yield NextKernel(grubby, Certainty.KNOWN, "grubby --default-kernel")
    yield from _by_grub(said, installed)
    for line in said.all("link"):
        path, _, target = line.partition(" ")
        release = _release(target, installed)
        if release:
            yield NextKernel(release, Certainty.LIKELY, f"the link {path}")
    newest = max(said.all("bootable"), key=version_key, default="")
    if newest:
        yield NextKernel(newest, Certainty.GUESSED, "the newest kernel with an image")


def _by_grub(said: Said, installed: list[str]) -> Iterator[NextKernel]:
    """Yield what GRUB's settings say; the last GRUB_DEFAULT wins, as its files are read in order."""
    default = (said.all("default") or ["0"])[-1].strip("\"' ")
    if default == "saved":
        saved = _release(said.first("saved"), installed)
        if saved:
            yield NextKernel(saved, Certainty.KNOWN, "GRUB's saved entry")
        return
    named = _release(default, installed)
    first = _release(said.first("menu"), installed)
    if named:
        yield NextKernel(named, Certainty.KNOWN, f"GRUB_DEFAULT={default}")
    elif default == "0" and first:
        yield NextKernel(first, Certainty.KNOWN, "the first entry of GRUB's menu")


def _release(text: str, installed: list[str]) -> str:
    """Return the installed release that a path or a menu entry names, the longest where several match."""
    found = [release for release in installed if release in text]
    return max(found, key=len, default="")


def version_key(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts kernel releases as package managers do: numbers by value, words before numbers."""
    parts = re.findall(r"\d+|[A-Za-z]+", release)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


SECTION = Section("kernels", SCRIPT, read)
