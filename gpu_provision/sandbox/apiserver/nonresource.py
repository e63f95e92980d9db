"""Non-resource paths: health, version, discovery, and the part of OpenAPI that ``kubectl apply`` reads.

kubectl reads from OpenAPI 3 only whether a PATCH has ``fieldValidation``, so the documents have no schemas. PATCH
operations have no media types: kubectl then uses the merge keys of its compiled types.
"""

from __future__ import annotations

import platform

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.request import Response, json_response
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo

VERSION = "v1.34.0+sandbox"
_INFO = {"title": "Kubernetes (gpu-provision sandbox)", "version": VERSION}
_HEALTH = ("healthz", "livez", "readyz")
_VERSION = {
    "gitCommit": "gpu-provision",
    "gitTreeState": "clean",
    "buildDate": "2025-08-27T00:00:00Z",
    "goVersion": "none",
    "compiler": "cpython",
    "platform": f"linux/{platform.machine()}",
}
_EDIT, _CREATE = ["get", "patch", "update"], ["create"]
# Discovery entries of subresources that differ from their resources'.
_SUBRESOURCES: dict[str, Object] = {
    "binding": {"verbs": _CREATE, "version": "v1", "kind": "Binding"},
    "eviction": {"verbs": _CREATE, "group": "policy", "version": "v1", "kind": "Eviction"},
    "exec": {"verbs": [*_CREATE, "get"], "version": "v1", "kind": "PodExecOptions"},
    "finalize": {"verbs": ["update"]},
    "log": {"verbs": ["get"]},
}


def nonresource_document(catalog: Catalog, path: str, address: str) -> Response | None:
    """Return the document at a path, None for an unknown path; ``address`` is host and port of the server."""
    document: Object | None = None
    match [part for part in path.split("/") if part]:
        case [health, *_] if health in _HEALTH:
            return Response(200, b"ok", "text/plain")
        case []:
            roots = [f"/{root}" for root in _roots(catalog)]
            document = {
                "paths": [
                    "/api",
                    "/apis",
                    *roots,
                    *(f"/{name}" for name in _HEALTH),
                    "/openapi/v2",
                    "/openapi/v3",
                    "/version",
                ]
            }
        case ["version"]:
            major, minor = VERSION.lstrip("v").split(".")[:2]
            document = {"major": major, "minor": minor, "gitVersion": VERSION, **_VERSION}
        case ["api"]:
            where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
            document = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}
        case ["apis"]:
            groups = [_group(name, versions) for name, versions in catalog.groups().items() if name]
            document = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", name] if name in catalog.groups():
            document = {"kind": "APIGroup", "apiVersion": "v1", **_group(name, catalog.groups()[name])}
        case ["openapi", "v2"]:
            # Older kubectl (1.20 in Debian 12) reads it. Zero bytes are a valid document without schemas: kubectl then
            # leaves validation to the server and uses its compiled merge keys.
            return Response(200, b"", "application/octet-stream")
        case ["openapi", "v3", *rest]:
            document = _openapi(catalog, rest)
        case rest if infos := _resources_at(catalog, rest):
            rows = [row for info in infos for row in _resource_rows(info)]
            head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": infos[0].api_version}
            document = {**head, "resources": rows}
    return json_response(document) if document else None


def _resources_at(catalog: Catalog, parts: list[str]) -> list[ResourceInfo]:
    match parts:
        case ["api", version]:
            group = ""
        case ["apis", group, version]:
            pass
        case _:
            return []
    return [info for info in catalog if (info.group, info.version) == (group, version)]


def is_served(catalog: Catalog, path: str) -> bool:
    """Whether a path is below a served group and version."""
    parts = [part for part in path.split("/") if part]
    return any(_resources_at(catalog, parts[:length]) for length in range(2, len(parts)))


def _roots(catalog: Catalog) -> list[str]:
    return [_root(name, version) for name, versions in catalog.groups().items() for version in versions]


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _group(name: str, versions: list[str]) -> Object:
    rows = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": rows, "preferredVersion": rows[0]}


def _resource_rows(info: ResourceInfo) -> list[Object]:
    names = {"name": info.plural, "singularName": info.singular, "namespaced": info.namespaced, "kind": info.kind}
    lists = {"verbs": info.verbs, "shortNames": info.short_names, "categories": info.categories}
    rows = [{**names, **{key: list(values) for key, values in lists.items() if values}}]
    for name in info.subresources:
        row = {**names, "name": f"{info.plural}/{name}", "singularName": "", "verbs": _EDIT}
        rows.append(row | _SUBRESOURCES.get(name, {}))
    return rows


def _operations(info: ResourceInfo) -> Object:
    """Return path -> operations of a resource; kubectl reads only the parameters of writes."""
    root = _root(info.group, info.version)
    base = f"/{root}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"/{root}/{info.plural}"
    kind = {"group": info.group, "version": info.version, "kind": info.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    responses = {"200": {"description": "OK"}}
    operation = {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": responses}
    single = {method: operation for verb, method in (("update", "put"), ("patch", "patch")) if verb in info.verbs}
    listing = {"post": operation} if "create" in info.verbs else {}
    return {base: listing} | ({f"{base}/{{name}}": single} if single else {})


def _openapi(catalog: Catalog, parts: list[str]) -> Object | None:
    """Return the OpenAPI 3 document of a group and version, or the index of these documents."""
    if not parts:
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in _roots(catalog)}}
    paths = {path: own for info in _resources_at(catalog, parts) for path, own in _operations(info).items()}
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": {}}} if paths else None
