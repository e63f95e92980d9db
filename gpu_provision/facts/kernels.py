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
        lists: Whose package lists were looked at for headers: ``apt``, ``dnf`` or ``zypp``; empty if there are none.
        offered: Releases whose headers these lists have.
        next: What boots next; None if nothing tells.
    """

    installed: tuple[str, ...] = ()
    bootable: tuple[str, ...] = ()
    with_headers: tuple[str, ...] = ()
    lists: str = ""
    offered: tuple[str, ...] = ()
    next: NextKernel | None = None

    def without_headers(self, *releases: str) -> tuple[str, ...]:
        """Return those of the releases that have no headers here, and none in the package lists."""
        known = {*self.with_headers, *self.offered}
        return tuple(release for release in dict.fromkeys(releases) if release not in known) if self.lists else ()


# Package lists may be compressed, or not there: then nothing is said about headers. dnf is asked only if the running
# kernel has none: it takes a second, and writes a log of its own. Real-time and Oracle's kernels have headers under
# names that are not looked for.
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
offered() { sort -u | while read -r release; do [ -d "/lib/modules/$release" ] && echo "offered $release"; done; }
has() { [ -e "$1" ]; }
zypp=$(find /var/cache/zypp/solv -name solv.idx ! -path '*/@System/*' -exec grep -hE '^kernel-[a-z0-9]+-devel' {} +)
if has /var/lib/apt/lists/*_Packages; then
  echo "lists apt"
  set --
  for directory in /lib/modules/*; do set -- "$@" -e "Package: linux-headers-${directory##*/}"; done
  grep -hxF "$@" /var/lib/apt/lists/*_Packages | sed 's/^Package: linux-headers-//' | offered
elif [ -n "$zypp" ]; then
  echo "lists zypp"
  echo "$zypp" |
    sed -nE 's/^kernel-([a-z0-9]+)-devel[[:space:]]+([0-9.]+-[0-9.]+)\.[0-9]+[[:space:]].*/\2-\1/p' | offered
elif has /var/cache/dnf/*.solv && [ ! -e "$stock/build/Makefile" ]; then
  case $kernel in *rt* | *uek*) ;; *)
    found=$($bounded dnf -q -C repoquery --whatprovides kernel-devel-uname-r --provides) && [ -n "$found" ] && {
      echo "lists dnf"
      echo "$found" | sed -n 's/^kernel-devel-uname-r = //p' | offered
    } ;;
  esac
fi
true
"""


def read(said: Said) -> Kernels:
    """Read the section."""
    return Kernels(
        installed=tuple(said.all("installed")),
        bootable=tuple(said.all("bootable")),
        with_headers=tuple(said.all("headers")),
        lists=said.first("lists"),
        offered=tuple(said.all("offered")),
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
    parts = re.findall(r"[0-9]{1,18}|[A-Za-z]+", release)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


SECTION = Section("kernels", SCRIPT, read)
