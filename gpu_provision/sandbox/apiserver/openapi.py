"""OpenAPI: what kubectl needs to send ``fieldValidation``, and field names and types for ``kubectl explain``.

The types are those that server-side apply works with, so there are no descriptions. PATCH operations name no media
types on purpose: kubectl then takes the merge keys of its own compiled types for ``kubectl apply``.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib import resources as files
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import fieldmanager
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.discovery import VERSION
from gpu_provision.sandbox.apiserver.objects import dumped
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo

_GVK = "x-kubernetes-group-version-kind"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_REFERENCE = "#/components/schemas/"
_INFO = {"title": "Kubernetes (gpu-provision sandbox)", "version": VERSION}
_WORDS: dict[str, Object] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "any": {"type": "string"},
    "list": {"type": "array", "items": {"type": "object"}},
    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    "atomic": {"type": "object"},
    "atomic map": {"type": "object", "additionalProperties": {"type": "string"}},
    "deduced": {"type": "object"},
}


@cache
def _types() -> Object:
    text = (files.files(fieldmanager) / "schema.json").read_text("utf-8")
    data: Object = json.loads(text)
    return data


def _component(name: str) -> str:
    """Return the name of a type's schema: ``core.v1.Pod`` -> ``io.k8s.api.core.v1.Pod``."""
    return _META + name.removeprefix("meta.v1.") if name.startswith("meta.v1.") else f"io.k8s.api.{name}"


def _schema(text: str, used: set[str]) -> Object:
    """Return the schema of one type of the data file; the named types in it are added to ``used``."""
    plain = text.removesuffix("!").removesuffix(" granular")
    if word := _WORDS.get(plain):
        return word
    if listed := re.fullmatch(r"list<(.+)> by (.+)", plain):
        keys = [key.partition("=")[0] for key in listed[2].split()]
        kinds = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
        return {"type": "array", "items": _schema(listed[1], used), **kinds}
    if mapped := re.fullmatch(r"map<(.+)>", plain):
        return {"type": "object", "additionalProperties": _schema(mapped[1], used)}
    used.add(plain)
    return {"allOf": [{"$ref": _REFERENCE + _component(plain)}], "default": {}}


def _type_schema(name: str, used: set[str]) -> Object:
    fields = _types()["types"].get(name, {})
    properties = {field: _schema(text, used) for field, text in sorted(fields.items()) if field != "."}
    return {"type": "object", "properties": properties}


def _builtin_name(info: ResourceInfo) -> str:
    prefix = _types()["groups"].get(info.group, "")
    return f"{prefix}.{info.version}.{info.kind}"


def _gvk(info: ResourceInfo) -> Object:
    return {"group": info.group, "version": info.version, "kind": info.kind}


def _schemas(infos: list[ResourceInfo], custom: CustomResources) -> Object:
    schemas: Object = {}
    waiting: set[str] = {"meta.v1.ObjectMeta"}
    for info in infos:
        name, used = _builtin_name(info), set[str]()
        own = custom.schema(info) if info.custom else _type_schema(name, used)
        key = _custom_component(info) if info.custom else _component(name)
        schemas[key] = {**_with_meta(own or {"type": "object"}, custom=info.custom), _GVK: [_gvk(info)]}
        waiting |= used
    while waiting:
        name = waiting.pop()
        used = set()
        if _component(name) not in schemas:
            schemas[_component(name)] = _type_schema(name, used)
        waiting |= used
    return schemas


def _custom_component(info: ResourceInfo) -> str:
    return f"{'.'.join(reversed(info.group.split('.')))}.{info.version}.{info.kind}"


def _with_meta(schema: Object, *, custom: bool) -> Object:
    if not custom:
        return schema
    head = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"allOf": [{"$ref": f"{_REFERENCE}{_META}ObjectMeta"}]},
    }
    return {**schema, "properties": {**(schema.get("properties") or {}), **head}}


_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")


def _parameters() -> list[Object]:
    return [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in _OPTIONS]


def _operation(info: ResourceInfo, action: str) -> Object:
    writes = action in ("post", "put", "patch")
    reference = _custom_component(info) if info.custom else _component(_builtin_name(info))
    content = {"application/json": {"schema": {"$ref": _REFERENCE + reference}}}
    return {
        "operationId": f"{action}{info.group.replace('.', '')}{info.version}{info.kind}",
        "x-kubernetes-action": action,
        _GVK: _gvk(info),
        "parameters": _parameters() if writes else [],
        "responses": {"200": {"description": "OK", "content": content}},
    }


def _paths(info: ResourceInfo) -> Object:
    root = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
    base = f"{root}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"{root}/{info.plural}"
    listing = {
        name: _operation(info, action)
        for name, action, verb in (("get", "list", "list"), ("post", "post", "create"))
        if verb in info.verbs
    }
    single = {
        name: _operation(info, name)
        for name, verb in (("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete"))
        if verb in info.verbs
    }
    paths: Object = {base: listing}
    if single:
        paths[f"{base}/{{name}}"] = single
    return paths


def group_document(catalog: Catalog, custom: CustomResources, group: str, version: str) -> Object | None:
    """Return the OpenAPI 3 document of one version of a group, None if nothing is served there."""
    infos = catalog.of_group(group, version)
    if not infos:
        return None
    paths: Object = {}
    for info in infos:
        paths |= _paths(info)
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": _schemas(infos, custom)}}


def root_document(catalog: Catalog, custom: CustomResources) -> Object:
    """Return the document of ``/openapi/v3``: where the groups' documents are; the hash changes with the content."""
    paths: dict[str, Any] = {}
    for group, versions in catalog.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            content = dumped(group_document(catalog, custom, group, version))
            digest = hashlib.sha256(content).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def old_document(catalog: Catalog) -> Object:
    """Return a small ``/openapi/v2``: operations without schemas."""
    paths: Object = {}
    for info in catalog:
        for path, operations in _paths(info).items():
            paths[path] = {name: _old_operation(info, name) for name in operations}
    return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": {}}


def _old_operation(info: ResourceInfo, name: str) -> Object:
    parameters = [{"name": option, "in": "query", "type": "string", "uniqueItems": True} for option in _OPTIONS]
    writes = name in ("post", "put", "patch")
    return {
        _GVK: _gvk(info),
        "parameters": parameters if writes else [],
        "responses": {"200": {"description": "OK"}},
    }
