"""The form in which objects go out: as they are, as a table, or their metadata alone."""

from __future__ import annotations

from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import JSON, Call, Reply
from gpu_provision.sandbox.apiserver.crds import CustomResources
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.objects import dumped
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.tables import table

_META = "meta.k8s.io/v1"


class Form(NamedTuple):
    """``kind`` is Object, Table or PartialObjectMetadata; ``include`` says what a table's rows carry."""

    kind: str = "Object"
    include: str = "Metadata"


def form_of(call: Call) -> Form:
    """Return the first form of the Accept header that the server knows."""
    for choice in call.accept.split(","):
        parts = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        kind = parts.get("as", "")
        if parts.get("v", "v1") != "v1":
            continue
        if kind == "Table":
            return Form("Table", call.query.get("includeObject", "Metadata"))
        if kind.startswith("PartialObjectMetadata"):
            return Form("PartialObjectMetadata")
        if not kind:
            break
    return Form()


_ACCEPTABLE = (JSON, "application/yaml", "application/vnd.kubernetes.protobuf", "application/*", "*/*")


def is_acceptable(accept: str) -> bool:
    """Say whether an Accept header names a form that the server has; JSON stands in for the other two."""
    choices = [choice.partition(";")[0].strip() for choice in accept.split(",")]
    return not accept or any(choice in _ACCEPTABLE for choice in choices)


def metadata_only(obj: Object) -> Object:
    """Return a PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


def one(item: Item, info: ResourceInfo, form: Form, custom: CustomResources) -> bytes:
    """Return one object as JSON."""
    match form.kind:
        case "Table":
            return dumped(table([item], info, custom.columns(info), {}, form.include))
        case "PartialObjectMetadata":
            return dumped(metadata_only(item.object))
    return item.json


def many(items: list[Item], info: ResourceInfo, form: Form, custom: CustomResources, metadata: Object) -> bytes:
    """Return a list as JSON."""
    match form.kind:
        case "Table":
            return dumped(table(items, info, custom.columns(info), metadata, form.include))
        case "PartialObjectMetadata":
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": metadata}
            return dumped({**head, "items": [metadata_only(item.object) for item in items]})
    head = {"kind": f"{info.kind}List", "apiVersion": info.api_version, "metadata": metadata}
    rows = (item.json if info.custom else item.json_without_kind for item in items)
    return dumped(head)[:-1] + b',"items":[' + b",".join(rows) + b"]}"


def answer(item: Item, call: Call, custom: CustomResources, code: int = 200) -> Reply:
    """Return one object in the form that the caller wants."""
    return Reply(code, one(item, call.info, form_of(call), custom), JSON)
