"""An inventory's file: its text, its values with their lines, and its problems."""

from __future__ import annotations

import hashlib
import json
import os.path
import re
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import find_nearest

_WORD = re.compile(r"[A-Za-z0-9_-]+")

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top level down."""


@dataclass(slots=True)
class YamlNode:
    """One value of the document."""

    value: Any  # a scalar, or a dict or list of items
    line: int  # line of the value, from 1
    raw: str = ""  # the text of a scalar in the file
    lines: dict[str, int] = field(default_factory=dict)  # for a mapping: the line of each key
    misread: set[str] = field(default_factory=set)  # for a mapping: texts of keys that YAML reads as other values
    size: int = 1  # number of values in it, with aliases expanded


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed inventory file."""

    name: str  # the file as the user named it
    root: YamlNode  # the top-level mapping
    data: dict[str, Any]  # the same as plain dicts, lists and scalars

    def item(self, path: KeyPath) -> YamlNode | None:
        """Return the item at a path, or None if the file has none there."""
        item = self.root
        for step in path:
            try:
                item = item.value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return item

    def is_misread(self, path: KeyPath) -> bool:
        """Return whether a path ends in a key that YAML reads as another value, which has a finding."""
        holder = self.item(path[:-1])
        return holder is not None and path[-1] in holder.misread

    def line(self, path: KeyPath) -> int:
        """Return the line at which a path begins: its key's, or that of the nearest value around it."""
        item, line = self.root, self.root.line
        for step in path:
            line = item.lines.get(step, line) if isinstance(step, str) else line
            try:
                item = item.value[step]
            except (KeyError, IndexError, TypeError):
                break
            line = item.line if isinstance(step, int) else line
        return line

    def location(self, path: KeyPath) -> str:
        """Return ``file:line path`` for findings."""
        return f"{self.name}:{self.line(path)} {format_path(path)}".rstrip()

    def problem(self, path: KeyPath, finding: Finding) -> Problem:
        """Return a problem at a path; its finding has the location."""
        placed = partial(replace, finding, where=self.location(path))
        return Problem(line=self.line(path), severity=finding.severity, finding=placed)


def format_path(path: KeyPath) -> str:
    """Return a path as a text: ``nodes[2].ssh.port``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not _WORD.fullmatch(step):
            text += f'["{step}"]' if step.isprintable() else f"[{quote_unprintable(step)}]"
        else:
            text += f".{step}"
    return text.removeprefix(".")


def quote_unprintable(text: str) -> str:
    """Return a text for people: with quotes and escapes if it has invisible characters, such as a newline."""
    return text if text.isprintable() else json.dumps(text)


def to_plain(item: YamlNode) -> Any:
    """Return the item's value without lines."""
    if isinstance(item.value, dict):
        return {key: to_plain(child) for key, child in item.value.items()}
    if isinstance(item.value, list):
        return [to_plain(child) for child in item.value]
    return item.value


MAX_FINDINGS = 20
"""Number of findings of a file that are shown; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of an inventory, whose finding is not built yet."""

    line: int  # where in the file it is, from 1
    severity: Severity = Severity.ERROR  # whether it stops a run
    finding: Callable[[], Finding]  # called only if shown: the search for a similar name takes time
    holder: KeyPath | None = None  # of a key that YAML reads as another value: the mapping that has it


def to_findings(problems: Iterable[Problem], name: str) -> tuple[Finding, ...]:
    """Return findings sorted by line: the first `MOST`, errors before warnings, and one that counts the rest."""
    ranked = sorted(problems, key=lambda each: (each.severity is not Severity.ERROR, each.line))
    worded = [(each.line, each.finding()) for each in ranked[:MAX_FINDINGS]]
    worded.sort(key=lambda each: (each[0], each[1].where, each[1].code))
    findings = tuple(finding for _, finding in worded)
    if len(ranked) <= MAX_FINDINGS:
        return findings
    following = ranked[MAX_FINDINGS]
    rest = Finding(
        code="GP114",
        where=f"{name}:{following.line}",
        what=f"This file has {len(ranked):,} findings; the first {MAX_FINDINGS} are shown, and the next one is here.",
        fix="Correct those above first: many of the rest may have the same cause.",
        severity=following.severity,
    )
    return (*findings, rest)


MAX_BYTES = 1 << 20
"""Largest size of an inventory; one of 1,000 nodes has about a tenth of that."""

_BOM = "\ufeff"

_CONTROLS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")

# Characters outside the set of YAML 1.1, section 5.1.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Source:
    """The text of an inventory file."""

    name: str  # the path as the user wrote it; findings begin with it
    path: Path  # the same, absolute
    text: str  # its content, without a byte order mark
    digest: str  # SHA-256 of the bytes
    is_local: bool = True  # whether values may come from files and variables of this machine


class SourceError(Exception):
    """The file cannot be read as an inventory; carries the one finding with the reason."""

    def __init__(self, finding: Finding) -> None:
        """Keep the finding."""
        super().__init__(finding)
        self.finding = finding


def read_source(path: str | Path) -> Source:
    """Return the text of the file. Raises SourceError."""
    name, file = str(path), expand_home(str(path))
    if _CONTROLS.search(str(file.absolute())):  # its relative paths are written to files with one entry per line
        what = "The path of the file holds a control character, such as a newline."
        _refuse("GP102", name, what, "Rename the file or directory.")
    data = _read_bytes(name, file)
    return Source(name, file.absolute(), _decode(name, data), hashlib.sha256(data).hexdigest())


def read_stdin() -> Source:
    """Return the text of standard input. Raises SourceError."""
    name, data = "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        _refuse("GP103", name, f"The text is larger than {MAX_BYTES >> 20} MiB.", "Name a smaller file.")
    return Source(name, Path("stdin").absolute(), _decode(name, data), hashlib.sha256(data).hexdigest())


def _refuse(code: str, where: str, what: str, fix: str, seen: str = "") -> NoReturn:
    raise SourceError(Finding(code=code, where=where, what=what, evidence=seen, fix=fix))


def _read_bytes(name: str, file: Path) -> bytes:
    """Return the content; only a regular file within the size limit is opened."""
    try:
        status = file.stat()
        _check_file(name, file, status.st_mode, status.st_size)
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)  # a file of /proc or /sys has no size, and one may grow
        _check_file(name, file, status.st_mode, len(data))
    except (FileNotFoundError, NotADirectoryError):
        _refuse_missing(name, file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = "Grant yourself read permission." if isinstance(error, PermissionError) else ""
        _refuse("GP102", name, "The file cannot be read.", fix, reason)
    return data


def _check_file(name: str, file: Path, mode: int, size: int) -> None:
    if stat.S_ISDIR(mode):
        inside = _yaml_files(file)
        fix = f"Name one of its files: {', '.join(inside[:5])}" if inside else "Name a YAML file."
        _refuse("GP102", name, "This is a directory, not an inventory file.", fix)
    if not stat.S_ISREG(mode):
        _refuse("GP102", name, "This is not a regular file.", "Name a YAML file.")
    if file.suffix == ".py":
        what = "This is a pyinfra inventory script, not the inventory itself."
        _refuse("GP102", name, what, f"Name the YAML file: {file.with_suffix('.yaml')}")
    if size > MAX_BYTES:
        what = f"The file is larger than {MAX_BYTES >> 20} MiB, so it is not an inventory."
        fix = "Name the inventory's YAML file. Nodes need no lines of their own in a pool with a node_selector."
        _refuse("GP103", name, what, fix, f"{size:,} bytes")


def _refuse_missing(name: str, file: Path) -> NoReturn:
    parent = file.parent
    if not parent.is_dir():
        what = "The file does not exist, nor does its directory."
        _refuse("GP101", name, what, f"Look for the directory {parent}")
    by_stem = {Path(each).stem: Path(each).name for each in _yaml_files(parent)}
    close = by_stem.get(find_nearest(file.stem, by_stem))
    fix = f"Did you mean {parent / close}?" if close else "Name an existing YAML file."
    _refuse("GP101", name, "The file does not exist.", fix)


def _yaml_files(directory: Path) -> list[str]:
    try:
        return sorted(str(file) for file in directory.iterdir() if file.suffix in {".yaml", ".yml"})
    except OSError:
        return []


def _decode(name: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        fix = "It looks like UTF-16; save it as UTF-8." if is_utf16 else "Save it as UTF-8."
        evidence = f"byte 0x{data[error.start]:02x}"
        _refuse("GP104", f"{name}:{line}", "The file is not UTF-8 text.", fix, evidence)
    if match := _FORBIDDEN.search(text):
        line, evidence = text.count("\n", 0, match.start()) + 1, f"U+{ord(match.group()):04X}"
        fix = "Remove it; an editor can show invisible characters."
        _refuse("GP104", f"{name}:{line}", "The file holds a control character.", fix, evidence)
    return text


def absolute_path(text: str, base: Path) -> str:
    """Return the absolute path; an empty one stays empty."""
    return os.path.normpath(base / expand_home(text)) if text else ""


def expand_home(text: str) -> Path:
    """Return the path with its tilde expanded; that of an unknown user is not changed."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path.expanduser raises RuntimeError for those


def resolve_fleet(text: str, base: Path) -> str:
    """Return a sandbox fleet: its name, or the absolute path of its file."""
    return absolute_path(text, base) if "/" in text or text.endswith((".yaml", ".yml")) else text
