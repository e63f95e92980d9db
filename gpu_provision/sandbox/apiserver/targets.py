"""What a URL path names."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo

_OF_NAMESPACES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Target:
    """A resource, or an object of it, or a subresource of that."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def target(path: str, catalog: Catalog) -> Target | None:
    """Return what a path names, None if no resource is served there."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api", version, *rest] if rest:
            return _within("", version, rest, catalog)
        case ["apis", group, version, *rest] if rest:
            return _within(group, version, rest, catalog)
    return None


def _within(group: str, version: str, rest: list[str], catalog: Catalog) -> Target | None:
    match rest:
        case ["namespaces", namespace, plural, *more] if plural not in _OF_NAMESPACES:
            info = catalog.find(group, version, plural)
            return _target(info, namespace, more) if info and info.namespaced else None
        case [plural, *more]:
            info = catalog.find(group, version, plural)
            if info is None or (info.namespaced and more):
                return None
            return _target(info, "", more)
    return None


def _target(info: ResourceInfo, namespace: str, more: list[str]) -> Target | None:
    match more:
        case []:
            return Target(info, namespace)
        case [name]:
            return Target(info, namespace, name)
        case [name, subresource]:
            return Target(info, namespace, name, subresource) if subresource in info.subresources else None
    return None
