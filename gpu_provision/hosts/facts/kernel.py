"""The kernel that runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_provision.hosts.facts.section import Said, Section, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The running kernel.

    Attributes:
        running: Its release.
        architecture: As ``uname -m`` prints it: ``x86_64``, ``aarch64``.
        page_size: Bytes; 0 if unknown.
    """

    running: str = ""
    architecture: str = ""
    page_size: int = 0


# getconf is missing on some minimal systems; the kernel says it in smaps, too.
_KERNEL_SCRIPT = r"""
echo "running $kernel"
echo "architecture $(uname -m)"
size=$(getconf PAGESIZE) || size=$(sed -n 's/^KernelPageSize: *\([0-9]*\) kB.*/\1k/p' /proc/self/smaps | head -n 1)
echo "page-size $size"
"""


def read_kernel(said: Said) -> Kernel:
    """Read the section."""
    return Kernel(
        running=said.first("running"),
        architecture=said.first("architecture"),
        page_size=_bytes(said.first("page-size")),
    )


def _bytes(text: str) -> int:
    return (number(text.removesuffix("k")) or 0) * (1024 if text.endswith("k") else 1)


KERNEL_SECTION = Section("kernel", _KERNEL_SCRIPT, read_kernel)


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
_KERNELS_SCRIPT = r"""
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


def read_kernels(said: Said) -> Kernels:
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


KERNELS_SECTION = Section("kernels", _KERNELS_SCRIPT, read_kernels)

MODULES_FILE = "/etc/modules-load.d/gpu-provision.conf"

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


_MODULES_SCRIPT = rf"""
grep_into() {{ sed 's/:.*//' "$3" | grep -E "/($2)\.ko" | sed "s/^/$1 /"; }}
show loaded /proc/modules
grep_into builtin @PATTERN@ "$stock/modules.builtin"
grep_into available @PATTERN@ "$stock/modules.dep"
for module in @MODULES@; do
  [ -d "/sys/module/$module" ] && ! grep -q "^$module " /proc/modules && echo "builtin $module"
done
show boot /etc/modules
show boot /etc/modules-load.d/*.conf /run/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf
[ -e {MODULES_FILE} ] && {{ echo "own "; show own {MODULES_FILE}; }}
[ -d "$stock" ] || echo no-directory
"""


def canonical(module: str) -> str:
    """Write a module's name as the kernel does: dashes and underscores are the same to it."""
    return module.strip().replace("-", "_")


def read_modules(said: Said) -> Modules:
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


MODULES_SECTION = Section("modules", _MODULES_SCRIPT, read_modules)

NOUVEAU_FILE = "/etc/modprobe.d/gpu-provision-nouveau.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nouveau:
    """The blacklists of nouveau, and the initramfs of the running kernel.

    Attributes:
        blacklisted_elsewhere: Whether a file that is not ours, or the kernel's command line, keeps it away.
        own_file: Lines of our own blacklist; None if there is none.
        initramfs: Path of the running kernel's image; empty for none.
        initramfs_stale: Whether our blacklist is newer than that image.
        initramfs_tool: ``update-initramfs`` or ``dracut``; empty for neither.
        in_initramfs: Whether the image holds the module; None where nobody looked. Listing an image takes
            seconds, so that is done only while nouveau is loaded.
    """

    blacklisted_elsewhere: bool = False
    own_file: tuple[str, ...] | None = None
    initramfs: str = ""
    initramfs_stale: bool = False
    initramfs_tool: str = ""
    in_initramfs: bool | None = None

    @property
    def blacklisted(self) -> bool:
        """Whether nouveau stays away after the next boot."""
        return self.blacklisted_elsewhere or _blacklists(self.own_file or ())


# Of the kernel's command line, which may hold secrets, only blacklists are read.
_NOUVEAU_SCRIPT = rf"""
tr ' ' '\n' </proc/cmdline | grep -E '^(rd\.driver\.|modprobe\.|module_)blacklist=' | sed 's/^/cmdline /'
[ -e {NOUVEAU_FILE} ] && {{ echo "own "; show own {NOUVEAU_FILE}; }}
for file in /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf; do
  [ "$file" != {NOUVEAU_FILE} ] && grep -E '^[[:space:]]*(blacklist|install)[[:space:]]+nouveau' "$file" |
    sed 's/^/modprobe /'
done
for tool in update-initramfs dracut; do
  command -v "$tool" >/dev/null && {{ echo "tool $tool"; break; }}
done
for image in "/boot/initrd.img-$kernel" "/boot/initramfs-$kernel.img" "/boot/initrd-$kernel"; do
  [ -e "$image" ] || continue
  echo "initramfs $image"
  [ -n "$(find {NOUVEAU_FILE} -newer "$image")" ] && echo stale
  [ -d /sys/module/nouveau ] || break
  for list in lsinitramfs lsinitrd; do
    command -v "$list" >/dev/null || continue
    names=$($patient "$list" "$image") && {{
      echo listed
      echo "$names" | grep -q '/nouveau\.ko' && echo contains
    }}
    break
  done
  break
done
"""


def read_nouveau(said: Said) -> Nouveau:
    """Read the section."""
    return Nouveau(
        blacklisted_elsewhere=_blacklists(said.all("modprobe")) or any(map(_keeps_away, said.all("cmdline"))),
        own_file=own_file(said.all("own")),
        initramfs=said.first("initramfs"),
        initramfs_stale=said.has("stale"),
        initramfs_tool=said.first("tool"),
        in_initramfs=said.has("contains") if said.has("listed") else None,
    )


def _blacklists(lines: Iterable[str]) -> bool:
    """Return whether modprobe.d lines keep nouveau away, as a blacklist or by an install command that fails."""
    words = [line.split() for line in lines]
    return any(
        line[:2] == ["blacklist", "nouveau"]
        or (line[:2] == ["install", "nouveau"] and line[2:3] in (["/bin/false"], ["/bin/true"]))
        for line in words
    )


def _keeps_away(command_line: str) -> bool:
    """Return whether a kernel command line does: a parameter of modprobe, of the kernel or of dracut."""
    found = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any("nouveau" in value.split(",") for value in found)


NOUVEAU_SECTION = Section("nouveau", _NOUVEAU_SCRIPT, read_nouveau)
