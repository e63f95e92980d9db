"""Read kubeconfigs: files merged, and of a context its cluster and user, as entries that know their place.

No message quotes a value: any may be secret, also one that stands in the wrong place.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpu_provision.kube.errors import bad_kubeconfig
from gpu_provision.model.findings import UsageError

_LIST, _MAPPING = "it must be a list", "it must be a mapping"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping of a kubeconfig.

    Attributes:
        file: The kubeconfig that has it; relative paths begin at its folder.
        place: Where it stands there, such as ``users[ada].user``.
    """

    file: Path
    place: str
    data: Mapping[str, Any] = field(repr=False)

    def bad(self, key: str, reason: str) -> UsageError:
        """Return the error for a value that cannot be used. It is not quoted, as it may be secret."""
        return bad_kubeconfig(f"{self.file}: {self.place}.{key}".replace(": .", ": "), "", reason)

    def text(self, key: str) -> str:
        """Return a text; empty for none."""
        return self._typed(key, str, "it must be text; put it in quotes")

    def flag(self, key: str) -> bool:
        """Return whether a flag is set."""
        return self._typed(key, bool, "it must be true or false")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        items = self._typed(key, list, _LIST)
        if all(isinstance(item, str) for item in items):
            return tuple(items)
        raise self.bad(key=key, reason="it must be a list of texts; put each in quotes")

    def part(self, key: str) -> Entry:
        """Return the mapping that a key holds."""
        return Entry(self.file, f"{self.place}.{key}", self._typed(key, dict, _MAPPING))

    def parts(self, key: str) -> Iterator[Entry]:
        """Yield the mappings of the list that a key holds."""
        for number, item in enumerate(self._typed(key, list, _LIST)):
            place = f"{self.place}.{key}[{number}]".removeprefix(".")
            if not isinstance(item, dict):
                raise bad_kubeconfig(path=f"{self.file}: {place}", context="", reason=_MAPPING)
            yield Entry(self.file, place, item)

    def _typed(self, key: str, kind: type[_T], reason: str) -> _T:
        value = self.data.get(key)
        if value is None:
            return kind()
        if isinstance(value, kind):
            return value
        raise self.bad(key=key, reason=reason)

    def content(self, key: str) -> bytes:
        """Return what KEY-data holds in base64, else what the file has that KEY names; empty without both."""
        if encoded := self.text(f"{key}-data"):
            try:
                return base64.b64decode("".join(encoded.split()), validate=True)
            except ValueError:
                raise self.bad(key=f"{key}-data", reason="it is not base64") from None
        return self.read(key) if self.text(key) else b""

    def read(self, key: str) -> bytes:
        """Return what is in the file that a key names."""
        path = self.file.parent / self.text(key)
        try:
            return path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or "no file can have this name"
            raise self.bad(key=key, reason=f"{path} cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context with its cluster and user."""

    name: str
    cluster: Entry
    user: Entry
    user_name: str


def default_files() -> list[Path]:
    """Return those of the default kubeconfigs that exist."""
    places = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    return [path for path in (Path(place).expanduser() for place in places if place) if path.exists()]


def choose(kubeconfig: str, context: str) -> Chosen:
    """Return a context. Of several files the first one that names an entry, or a current context, decides."""
    files = [Path(kubeconfig)] if kubeconfig else default_files()
    where = os.pathsep.join(map(str, files)) or "the default kubeconfig"
    if not files:
        raise bad_kubeconfig(where, context, "there is no such file")
    roots = [_root(file) for file in files]
    name = context or next(filter(None, (root.text("current-context") for root in roots)), "")
    if not name:
        raise bad_kubeconfig(where, "", "it has no current-context")
    found = _named(roots, "context", name)
    if found is None:
        raise bad_kubeconfig(where, name, "there is no such context")
    cluster, user = (_referred(roots, found, kind) for kind in ("cluster", "user"))
    return Chosen(name, cluster, user, found.text("user"))


def _root(file: Path) -> Entry:
    try:
        document = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except OSError as error:
        raise bad_kubeconfig(str(file), "", error.strerror or "it cannot be read") from error
    except UnicodeDecodeError:
        raise bad_kubeconfig(str(file), "", "it is not UTF-8") from None
    except (yaml.YAMLError, *_ODD_SCALARS) as error:  # whose texts quote the file
        mark = getattr(error, "problem_mark", None)
        raise bad_kubeconfig(f"{file}:{mark.line + 1}" if mark else str(file), "", "it is not YAML") from None
    if not isinstance(document, dict):
        raise bad_kubeconfig(str(file), "", "it holds no mapping")
    return Entry(file, "", document)


# What PyYAML raises of texts such as !!int x, !!bool x, !!timestamp x, and a thousand brackets.
_ODD_SCALARS = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)


def _named(roots: Iterable[Entry], kind: str, name: str) -> Entry | None:
    """Return what stands under a name in the list of a kind, such as ``user``."""
    for root in roots:
        for entry in root.parts(f"{kind}s"):
            if entry.text("name") == name:
                return Entry(root.file, f"{kind}s[{name}]", {kind: entry.data.get(kind)}).part(kind)
    return None


def _referred(roots: Iterable[Entry], context: Entry, kind: str) -> Entry:
    """Return the cluster or user of a context; a context need not have a user."""
    name = context.text(kind)
    found = _named(roots, kind, name) if name else None
    if found is not None:
        return found
    if name or kind == "cluster":
        raise context.bad(key=kind, reason=f"there is no such {kind}")
    return Entry(context.file, context.place, {})
