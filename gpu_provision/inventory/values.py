"""Values that an inventory takes from elsewhere: a file, or a variable of the command's environment.

They are filled in before the schema is asked, so that what holds for a value holds wherever it stands. The text of the
inventory, and with it every record, keeps the reference. A Secret of the cluster is left to Kubernetes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from gpu_provision.inventory.document import Document, Path
from gpu_provision.inventory.problems import Problem
from gpu_provision.inventory.redaction import takes_value_from
from gpu_provision.inventory.source import absolute
from gpu_provision.model.findings import Finding

LIMIT = 64 << 10
"""Bytes that a value may have; Linux gives a program no longer variable than 128 KiB."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Trouble(NamedTuple):
    """Why there is no such value: what is wrong, what was seen, and what mends it."""

    what: str
    evidence: str
    fix: str


def filled(document: Document, base: FilePath, *, is_local: bool) -> tuple[dict[str, Any], list[Problem]]:
    """Return the data with values in place of references, and a problem for each reference that gives none.

    A reference that gives none is left out, so that the other checks go on without it. One file or variable that is
    referred to more than once is one problem.

    Args:
        document: The inventory as it is written.
        base: Folder of the inventory, where relative paths begin.
        is_local: Whether files and variables of this machine may be read for it.
    """
    values: dict[Path, str | None] = {}
    problems: dict[tuple[str, str], Problem] = {}
    for path, source, name in references(document.data):
        found = _read(source, name, base) if is_local else _NOT_LOCAL
        values[path] = found if isinstance(found, str) else None
        if isinstance(found, _Trouble):
            problem = partial(_problem, document.where((*path, source)), found)
            problems.setdefault((source, name), Problem(line=document.line((*path, source)), finding=problem))
    return (_replaced(document.data, values) if values else document.data), list(problems.values())


def _problem(where: str, trouble: _Trouble) -> Finding:
    return Finding(code="GP169", where=where, what=trouble.what, evidence=trouble.evidence, fix=trouble.fix)


def without_foreign(data: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a record, to compare, with names in place of what only the record refers to.

    A record may have nothing read that the inventory of now does not read itself.
    """
    known = {(source, name) for _, source, name in references(now)}
    foreign = {path: f"{source} {name}" for path, source, name in references(data) if (source, name) not in known}
    return dict(_replaced(data, foreign)) if foreign else data


def without_incomplete(data: Any, path: Path = ()) -> Any:
    """Return data that the schema has cleaned, without references of which too little is left to mean anything."""
    if isinstance(data, dict):
        below = {key: (*path, key) for key in data}
        return {
            key: without_incomplete(data[key], here)
            for key, here in below.items()
            if not _is_incomplete(data[key], here)
        }
    if isinstance(data, list):
        return [without_incomplete(item, (*path, index)) for index, item in enumerate(data)]
    return data


def _is_incomplete(value: Any, path: Path) -> bool:
    if not isinstance(value, dict) or not takes_value_from(path, "file"):
        return False
    return not ({"name", "key"} <= (value.get("secret") or {}).keys())


def digest_with(digest: str, document: Document, data: dict[str, Any]) -> str:
    """Return a digest of an inventory's file and of the values that it takes from elsewhere."""
    if data is document.data:
        return digest
    return hashlib.sha256(f"{digest} {json.dumps(data, sort_keys=True)}".encode()).hexdigest()


def references(data: Mapping[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield each reference to a file or a variable: its path, ``file`` or ``env``, and the name that it gives."""
    yield from _below(data, ())


def _below(value: Any, path: Path) -> Iterator[tuple[Path, str, str]]:
    match value:
        case {"file": str(name)} if name and len(value) == 1 and takes_value_from(path, "file"):
            yield path, "file", name
        case {"env": str(name)} if _VARIABLE.fullmatch(name) and len(value) == 1 and takes_value_from(path, "env"):
            yield path, "env", name
        case dict():
            for key, item in value.items():
                yield from _below(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from _below(item, (*path, index))


def _replaced(value: Any, values: Mapping[Path, str | None], path: Path = ()) -> Any:
    if isinstance(value, dict):
        below = {key: (*path, key) for key in value}
        return {
            key: values[here] if here in values else _replaced(value[key], values, here)
            for key, here in below.items()
            if values.get(here, "") is not None
        }
    if isinstance(value, list):
        return [_replaced(item, values, (*path, index)) for index, item in enumerate(value)]
    return value


_NOT_LOCAL = _Trouble(
    what="A stack takes no value from `file` or `env`: those would be the controller's own.",
    evidence="",
    fix="Keep the value in a Secret of the cluster: {secret: {name: ..., key: ...}}",
)


def _read(source: str, name: str, base: FilePath) -> str | _Trouble:
    found = _of_file(name, base) if source == "file" else _of_environment(name)
    if isinstance(found, _Trouble):
        return found
    label = "The file with the value" if source == "file" else "The environment variable"
    try:
        text = found.decode()
    except UnicodeDecodeError:
        return _Trouble(f"{label} is not UTF-8 text.", name, "Save it as UTF-8.")
    if not text:
        return _Trouble(f"{label} is empty.", name, "Write the value into it.")
    if "\0" in text:
        return _Trouble(f"{label} holds a NUL character, which no value can.", name, "Write the value as text.")
    if len(found) > LIMIT:
        what = f"{label} is larger than {LIMIT >> 10} KiB, so it holds no value of a setting."
        return _Trouble(what, name, "Name the one that holds the value alone.")
    return text


def _of_environment(name: str) -> bytes | _Trouble:
    text = os.environ.get(name)
    if text is None:
        return _Trouble("The environment variable is not set.", name, f"Set it, and run again: export {name}=...")
    return os.fsencode(text)


def _of_file(name: str, base: FilePath) -> bytes | _Trouble:
    """Return the value in a file; what is not a regular file, such as a pipe that gives nothing, is not even opened."""
    file = FilePath(absolute(name, base))
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return _Trouble("The file with the value is not a regular file.", name, "Name a regular file.")
        with file.open("rb") as stream:
            data = stream.read(LIMIT + 3)  # a newline at the end does not count
    except FileNotFoundError:
        fix = f"Make it, or correct the path ({file})."
        return _Trouble("The file with the value does not exist on this machine.", name, fix)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = f"Give yourself the right to read it, or correct the path ({file})."
        return _Trouble("The file with the value cannot be read.", f"{name}: {reason}", fix)
    return data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n")
