"""The served resources: built-in ones (resources.yaml), custom ones added at run time, and their paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources as files

import yaml

from gpu_provision.sandbox.api import Object

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_OF_NAMESPACES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """One resource in one served version; resources.yaml describes the fields.

    All versions of a resource share one ``storage``. ``initial_status`` is None for objects that start without a
    status.
    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    counts_generations: bool = False
    put_creates: bool = False
    fields: tuple[str, ...] = ()
    defaults: Object = field(default_factory=dict, compare=False)
    initial_status: Object | None = field(default=None, compare=False)
    required: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    columns: tuple[Object, ...] = field(default=(), compare=False)
    custom: bool = False
    storage: str = field(init=False)

    def __post_init__(self) -> None:
        """Set the name of the storage, such as ``/pods`` or ``apps/daemonsets``."""
        object.__setattr__(self, "storage", f"{self.group}/{self.plural}")

    @property
    def api_version(self) -> str:
        """``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_name(self) -> str:
        """``pods`` or ``daemonsets.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Whether the resource has a status subresource."""
        return "status" in self.subresources


@cache
def builtin_resources() -> tuple[ResourceInfo, ...]:
    """Return the built-in resources in the order of discovery."""
    table = yaml.safe_load((files.files(__package__) / "resources.yaml").read_text("utf-8"))
    return tuple(
        ResourceInfo(section["group"], section["version"], plural, singular=row["kind"].lower(), **_with_tuples(row))
        for section in table
        for plural, row in section["resources"].items()
    )


def _with_tuples(row: Object) -> Object:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


class Catalog:
    """All served resources, including custom ones."""

    def __init__(self) -> None:
        """Start with the built-in resources."""
        self._infos: dict[tuple[str, str, str], ResourceInfo] = {}
        self.add(builtin_resources())

    def add(self, infos: Iterable[ResourceInfo]) -> None:
        """Serve resources."""
        self._infos |= {(info.group, info.version, info.plural): info for info in infos}

    def remove_custom(self, group: str, plural: str) -> None:
        """Stop serving every version of a custom resource."""
        self._infos = {
            key: info
            for key, info in self._infos.items()
            if not (info.custom and (info.group, info.plural) == (group, plural))
        }

    def find(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        """Return the resource, None if it is not served."""
        return self._infos.get((group, version, plural))

    def __iter__(self) -> Iterator[ResourceInfo]:
        """Iterate over the resources, built-in ones first."""
        return iter(self._infos.values())

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, the preferred one first."""
        groups: dict[str, dict[str, None]] = {}
        for info in self:
            groups.setdefault(info.group, {})[info.version] = None
        return {group: [*versions] for group, versions in groups.items()}


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The resource of a path, with the object and the subresource, if any."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str, catalog: Catalog) -> RequestInfo | None:
    """Return the parts of a resource path, None for a path without a served resource."""
    match [part for part in path.split("/") if part]:
        case ["api", version, *rest] if rest:
            group = ""
        case ["apis", group, version, *rest] if rest:
            pass
        case _:
            return None
    match rest:
        case ["namespaces", namespace, plural, *_] if plural not in _OF_NAMESPACES:
            rest = rest[2:]
        case _:
            namespace = ""
    info, names = catalog.find(group, version, rest[0]), rest[1:]
    if info is None or (info.namespaced != bool(namespace) and names) or (namespace and not info.namespaced):
        return None
    if len(names) > 2 or (len(names) == 2 and names[1] not in info.subresources):  # noqa: PLR2004 - name and subresource
        return None
    return RequestInfo(info, namespace, *names)
