"""What the server serves: the table of built-in resources (resources.yaml) and the custom ones added at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources as files
from typing import Any

import yaml

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """One resource of one served version.

    ``storage`` names where objects live; versions of one resource (and ``events`` of both groups) share it.
    ``counts_generations`` says whether ``metadata.generation`` follows changes of the desired state.
    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    storage: str = ""
    counts_generations: bool = False
    custom: bool = False

    @property
    def api_version(self) -> str:
        """``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """``pods`` or ``daemonsets.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Whether status is written apart from the rest."""
        return "status" in self.subresources


def _info(group: str, version: str, plural: str, row: dict[str, Any]) -> ResourceInfo:
    return ResourceInfo(
        group=group,
        version=version,
        plural=plural,
        kind=row["kind"],
        singular=row["kind"].lower(),
        namespaced=row.get("namespaced", True),
        short_names=tuple(row.get("short", ())),
        categories=tuple(row.get("categories", ())),
        subresources=tuple(row.get("subresources", ())),
        verbs=tuple(row.get("verbs", ALL_VERBS)),
        storage=row.get("storage", f"{group}/{plural}"),
        counts_generations=row.get("generation", False),
    )


@cache
def builtin() -> tuple[ResourceInfo, ...]:
    """Return the built-in resources in the order of discovery."""
    text = (files.files(__package__) / "resources.yaml").read_text("utf-8")
    table = yaml.safe_load(text)
    return tuple(
        _info(section["group"], section["version"], plural, row)
        for section in table
        for plural, row in section["resources"].items()
    )


class Catalog:
    """All resources served now; custom ones come and go."""

    def __init__(self, infos: Iterable[ResourceInfo] | None = None) -> None:
        """Start with the built-in resources unless told otherwise."""
        self._infos: dict[tuple[str, str, str], ResourceInfo] = {}
        self.add(builtin() if infos is None else infos)

    def add(self, infos: Iterable[ResourceInfo]) -> None:
        """Serve resources from now on."""
        for info in infos:
            self._infos[info.group, info.version, info.plural] = info

    def remove_custom(self, group: str, plural: str) -> None:
        """Stop serving every version of a custom resource."""
        self._infos = {
            key: info
            for key, info in self._infos.items()
            if not (info.custom and (info.group, info.plural) == (group, plural))
        }

    def find(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        """Return the resource, or None if nobody serves it."""
        return self._infos.get((group, version, plural))

    def of_storage(self, storage: str) -> ResourceInfo | None:
        """Return the first resource that keeps its objects under ``storage``."""
        return next((info for info in self if info.storage == storage), None)

    def __iter__(self) -> Iterator[ResourceInfo]:
        """Every resource, built-in ones first."""
        return iter(self._infos.values())

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, preferred version first."""
        groups: dict[str, list[str]] = {}
        for info in self:
            versions = groups.setdefault(info.group, [])
            if info.version not in versions:
                versions.append(info.version)
        return groups

    def of_group(self, group: str, version: str) -> list[ResourceInfo]:
        """Return the resources of one version of a group."""
        return [info for info in self if (info.group, info.version) == (group, version)]
