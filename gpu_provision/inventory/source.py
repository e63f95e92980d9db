"""Read an inventory's file: from a path to its text, or to the one finding that says why not."""

from __future__ import annotations

import hashlib
import os.path
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.inventory.nearest import nearest
from gpu_provision.model.findings import Finding

LIMIT = 1 << 20
"""Bytes that an inventory may have; one of 1,000 nodes has about a tenth of that."""

_BOM = "\ufeff"
_CONTROLS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
# What YAML 1.1 lets a stream hold, section 5.1 of its specification.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Source:
    """The text of an inventory file.

    Attributes:
        name: The path as the user wrote it; findings begin with it.
        path: The same, absolute.
        text: Its content, without a byte order mark.
        digest: SHA-256 of the bytes.
        is_local: Whether values may come from files and variables of this machine.
    """

    name: str
    path: Path
    text: str
    digest: str
    is_local: bool = True


class Unreadable(Exception):
    """The file cannot be read as an inventory; carries the one finding that says why."""

    def __init__(self, finding: Finding) -> None:
        """Keep the finding."""
        super().__init__(finding)
        self.finding = finding


def read(path: str | Path) -> Source:
    """Return the text of the file. Raises Unreadable."""
    name, file = str(path), home(str(path))
    if _CONTROLS.search(str(file.absolute())):  # relative paths in it go into files whose lines have meanings
        what, fix = "The path of the file holds a control character, such as a newline.", "Rename the file or folder."
        raise Unreadable(Finding(code="GP102", where=name, what=what, fix=fix))
    data = _bytes(name, file)
    return Source(
        name=name,
        path=file.absolute(),
        text=_text(name, data),
        digest=hashlib.sha256(data).hexdigest(),
    )


def _bytes(name: str, file: Path) -> bytes:
    """Return the content; what is not a regular file of bearable size is not even opened."""
    try:
        status = file.stat()
        _accept(name, file, status.st_mode, status.st_size)
        with file.open("rb") as stream:
            data = stream.read(LIMIT + 1)  # a file of /proc or /sys has no size, and one may grow
        _accept(name, file, status.st_mode, len(data))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreadable(_missing(name, file)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = "Give yourself the right to read it." if isinstance(error, PermissionError) else ""
        what = "The file cannot be read."
        raise Unreadable(Finding(code="GP102", where=name, what=what, evidence=reason, fix=fix)) from error
    return data


def _accept(name: str, file: Path, mode: int, size: int) -> None:
    if stat.S_ISDIR(mode):
        raise Unreadable(_directory(name, file))
    if not stat.S_ISREG(mode):
        what, fix = "This is not a regular file.", "Name a YAML file."
        raise Unreadable(Finding(code="GP102", where=name, what=what, fix=fix))
    if file.suffix == ".py":
        yaml = file.with_suffix(".yaml")
        what = "This is pyinfra's view of an inventory, not the inventory itself."
        raise Unreadable(Finding(code="GP102", where=name, what=what, fix=f"Name the YAML file: {yaml}"))
    if size > LIMIT:
        what = f"The file is larger than {LIMIT >> 20} MiB, so it is not an inventory."
        fix = "Name the inventory's YAML file. Nodes need no lines of their own in a pool with a node_selector."
        raise Unreadable(Finding(code="GP103", where=name, what=what, evidence=f"{size:,} bytes", fix=fix))


def _directory(name: str, file: Path) -> Finding:
    inside = _yaml_files(file)
    fix = f"Name one of its files: {', '.join(inside[:5])}" if inside else "Name a YAML file."
    return Finding(code="GP102", where=name, what="This is a directory, not an inventory file.", fix=fix)


def _missing(name: str, file: Path) -> Finding:
    parent = file.parent
    if not parent.is_dir():
        what, fix = "The file does not exist, nor does its directory.", f"Look for the directory {parent}"
        return Finding(code="GP101", where=name, what=what, fix=fix)
    files = _yaml_files(parent)
    by_stem = {Path(each).stem: Path(each).name for each in files}
    close = by_stem.get(nearest(file.stem, by_stem))
    fix = f"Did you mean {parent / close}?" if close else "Name an existing YAML file."
    return Finding(code="GP101", where=name, what="The file does not exist.", fix=fix)


def _yaml_files(directory: Path) -> list[str]:
    try:
        return sorted(str(file) for file in directory.iterdir() if file.suffix in {".yaml", ".yml"})
    except OSError:
        return []


def _text(name: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = "The file is not UTF-8 text."
        seen = f"byte 0x{data[error.start]:02x}"
        fix = _encoding_fix(data)
        raise Unreadable(Finding(code="GP104", where=f"{name}:{line}", what=what, evidence=seen, fix=fix)) from error
    found = _FORBIDDEN.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        what, seen = "The file holds a control character.", f"U+{ord(found.group()):04X}"
        fix = "Remove it; an editor can show invisible characters."
        raise Unreadable(Finding(code="GP104", where=f"{name}:{line}", what=what, evidence=seen, fix=fix))
    return text


def _encoding_fix(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "It looks like UTF-16; save it as UTF-8."
    return "Save it as UTF-8."


def absolute(text: str, base: Path) -> str:
    """Return the path in full; an empty one stays empty."""
    return os.path.normpath(base / home(text)) if text else ""


def home(text: str) -> Path:
    """Return the path with its tilde expanded; one of an unknown user stays as it is, instead of raising."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path.expanduser raises RuntimeError for those


def fleet(text: str, base: Path) -> str:
    """Return a sandbox fleet: a name as it is, the path of a fleet file in full."""
    return absolute(text, base) if "/" in text or text.endswith((".yaml", ".yml")) else text
