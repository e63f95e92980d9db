"""Paths that are no resources: health, version, discovery and OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import discovery, openapi
from gpu_provision.sandbox.apiserver.calls import JSON, Reply, reply
from gpu_provision.sandbox.apiserver.registry import Registry

_PROTOBUF = "com.github.proto-openapi.spec.v2"
_HEALTH = ("healthz", "livez", "readyz")
_ROOTS = ("/api", "/apis")


def document(registry: Registry, path: str, headers: Mapping[str, str], address: str) -> Reply | None:
    """Return the document at a path, None if there is none."""
    parts = [part for part in path.split("/") if part]
    fixed = {(): lambda: {"paths": _paths(registry)}, ("version",): discovery.version}.get(tuple(parts))
    if fixed:
        return reply(fixed())
    match parts:
        case [health, *_] if health in _HEALTH:
            return Reply(200, b"ok", "text/plain")
        case ["openapi", *rest]:
            return _openapi(registry, rest, headers.get("Accept", ""))
        case ["api" | "apis" as root]:
            return _root(registry, root, headers.get("Accept", ""), address)
        case ["api" | "apis", *rest]:
            return _described(registry, parts[0], rest)
    return None


def is_served(registry: Registry, path: str) -> bool:
    """Say whether a path lies below a group and version that the server knows."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api", version, _, *_]:
            return bool(registry.catalog.of_group("", version))
        case ["apis", group, version, _, *_]:
            return bool(registry.catalog.of_group(group, version))
    return False


def _paths(registry: Registry) -> list[str]:
    groups = [(name, version) for name, versions in registry.catalog.groups().items() for version in versions]
    served = [f"/apis/{name}/{version}" if name else f"/api/{version}" for name, version in groups]
    return [*_ROOTS, *served, *(f"/{name}" for name in _HEALTH), "/openapi/v2", "/openapi/v3", "/version"]


def _root(registry: Registry, root: str, accept: str, address: str) -> Reply:
    for choice in accept.split(","):
        if f"as={discovery.AGGREGATED}" in choice:
            version = "v2beta1" if "v=v2beta1" in choice else "v2"
            kind = f"{JSON};g=apidiscovery.k8s.io;v={version};as={discovery.AGGREGATED}"
            value = discovery.aggregated(registry.catalog, core=root == "api", version_name=version)
            return reply(value, kind=kind)
        if choice.strip().partition(";")[0] in (JSON, "*/*"):
            break
    return reply(discovery.core_versions(address) if root == "api" else discovery.groups(registry.catalog))


def _described(registry: Registry, root: str, rest: list[str]) -> Reply | None:
    match root, rest:
        case "api", [version]:
            found = discovery.resource_list(registry.catalog, "", version)
        case "apis", [group]:
            found = discovery.group(registry.catalog, group)
        case "apis", [group, version]:
            found = discovery.resource_list(registry.catalog, group, version)
        case _:
            return None
    return reply(found) if found else None


def _openapi(registry: Registry, rest: list[str], accept: str) -> Reply | None:
    catalog, custom = registry.catalog, registry.custom
    match rest:
        case ["v2"] if _PROTOBUF in accept:
            # Older kubectl (Debian 12 has 1.20) takes nothing else. No bytes are a valid document without schemas:
            # it then leaves validation to the server and uses the merge keys that it was compiled with.
            return Reply(200, b"", "application/octet-stream")
        case ["v2"]:
            found: Object | None = openapi.old_document(catalog)
        case ["v3"]:
            found = openapi.root_document(catalog, custom)
        case ["v3", "api", version]:
            found = openapi.group_document(catalog, custom, "", version)
        case ["v3", "apis", group, version]:
            found = openapi.group_document(catalog, custom, group, version)
        case _:
            return None
    return reply(found) if found else None
