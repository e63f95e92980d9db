"""What the server says about itself: version, groups, resources, in the old and the aggregated form."""

from __future__ import annotations

import platform
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo

VERSION = "v1.34.0+sandbox"
AGGREGATED = "APIGroupDiscoveryList"
_EDIT, _ASK = ("get", "patch", "update"), ("create",)
_SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "finalize": ("update",),
    "log": ("get",),
    "eviction": _ASK,
    "binding": _ASK,
    "token": _ASK,
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
}
_SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
    "exec": ("", "v1", "PodExecOptions"),
    "attach": ("", "v1", "PodAttachOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
}


def version() -> Object:
    """Return the document of ``/version``."""
    major, minor = VERSION.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": VERSION,
        "gitCommit": "gpu-provision",
        "gitTreeState": "clean",
        "buildDate": "2025-08-27T00:00:00Z",
        "goVersion": "none",
        "compiler": "cpython",
        "platform": f"linux/{platform.machine()}",
    }


def core_versions(address: str) -> Object:
    """Return the document of ``/api``; ``address`` is host and port of the server."""
    where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}


def _group(name: str, versions: list[str]) -> Object:
    rows = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": rows, "preferredVersion": rows[0]}


def groups(catalog: Catalog) -> Object:
    """Return the document of ``/apis``."""
    named = [_group(name, versions) for name, versions in catalog.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}


def group(catalog: Catalog, name: str) -> Object | None:
    """Return the document of ``/apis/<group>``, None if there is no such group."""
    versions = catalog.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions and name else None


def _full(row: Object) -> Object:
    return {key: value for key, value in row.items() if value not in ([], None)}


def _rows(info: ResourceInfo) -> list[Object]:
    own = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": list(info.verbs),
        "shortNames": list(info.short_names),
        "categories": list(info.categories),
    }
    return [_full(own), *(_full(_subresource_row(info, name)) for name in info.subresources)]


def _subresource_row(info: ResourceInfo, name: str) -> Object:
    group_name, version_name, kind = _SUBRESOURCE_KINDS.get(name, (None, None, info.kind))
    return {
        "name": f"{info.plural}/{name}",
        "singularName": "",
        "namespaced": info.namespaced,
        "group": group_name or None,
        "version": version_name,
        "kind": kind,
        "verbs": list(_SUBRESOURCE_VERBS.get(name, _EDIT)),
    }


def resource_list(catalog: Catalog, group_name: str, version_name: str) -> Object | None:
    """Return the document of ``/api/v1`` or ``/apis/<group>/<version>``, None if nothing is served there."""
    infos = catalog.of_group(group_name, version_name)
    if not infos:
        return None
    rows = [row for info in infos for row in _rows(info)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": infos[0].api_version, "resources": rows}


def aggregated(catalog: Catalog, *, core: bool, version_name: str) -> Object:
    """Return the aggregated document of ``/api`` (``core``) or ``/apis``; ``version_name`` is v2 or v2beta1."""
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None},
            "versions": [_aggregated_version(catalog, name, served) for served in versions],
        }
        for name, versions in catalog.groups().items()
        if bool(name) is not core
    ]
    return {
        "kind": AGGREGATED,
        "apiVersion": f"apidiscovery.k8s.io/{version_name}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(catalog: Catalog, name: str, served: str) -> Object:
    resources = [_aggregated_resource(info) for info in catalog.of_group(name, served)]
    return {"version": served, "resources": resources, "freshness": "Current"}


def _kind(info: ResourceInfo, subresource: str = "") -> dict[str, Any]:
    default = (info.group, info.version, info.kind)
    group_name, version_name, kind = _SUBRESOURCE_KINDS.get(subresource, default)
    return {"group": group_name, "version": version_name, "kind": kind}


def _aggregated_resource(info: ResourceInfo) -> Object:
    subresources = [
        {
            "subresource": name,
            "responseKind": _kind(info, name),
            "verbs": list(_SUBRESOURCE_VERBS.get(name, _EDIT)),
        }
        for name in info.subresources
    ]
    return _full(
        {
            "resource": info.plural,
            "responseKind": _kind(info),
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "singularResource": info.singular,
            "verbs": list(info.verbs),
            "shortNames": list(info.short_names),
            "categories": list(info.categories),
            "subresources": subresources,
        }
    )
