"""Tables: what ``kubectl get`` prints; with the JSONPath of printer columns, and the forms of an answer."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import JSON, Call, Reply
from gpu_provision.sandbox.apiserver.cells import since
from gpu_provision.sandbox.apiserver.columns import COLUMNS, DEFAULT, NAME, Column, value
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.objects import dumped
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Item

_STEP = re.compile(
    r"""\.(?P<key>(?:[^.\[\]\\]|\\.)+)
      | \[['"](?P<quoted>[^'"]+)['"]\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(\s*@\.(?P<field>[\w.]+)\s*==\s*['"](?P<value>[^'"]*)['"]\s*\)\]""",
    re.VERBOSE,
)


def found(value: Any, path: str) -> list[Any]:
    """Return what a path finds; nothing for what is missing or for a path that is not understood."""
    values, at = [value], 0
    text = path if path.startswith((".", "[")) else f".{path}"
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return []
        values = [part for one in values for part in _taken(one, step)]
        at = step.end()
    return [one for one in values if one is not None]


def _taken(value: Any, step: re.Match[str]) -> list[Any]:
    key = step["quoted"] or (step["key"] or "").replace("\\", "")
    if key:
        return [value[key]] if isinstance(value, dict) and key in value else []
    if not isinstance(value, list):
        return list(value.values()) if step["all"] and isinstance(value, dict) else []
    if step["all"]:
        return value
    if step["index"] is not None:
        index = int(step["index"])
        return value[index : index + 1 or None]
    return [row for row in value if isinstance(row, dict) and found(row, step["field"]) == [step["value"]]]


def _custom_cell(column: Object, obj: Object) -> Any:
    values = found(obj, column["jsonPath"])
    if not values:
        return None
    if column.get("type") == "date":
        return since(values[0])
    first = values[0] if len(values) == 1 else ",".join(str(one) for one in values)
    return json.dumps(first) if isinstance(first, dict | list) else first


def _custom_columns(columns: list[Object]) -> tuple[Column, ...]:
    made = [Column(row["name"], partial(_custom_cell, row), row["type"], row.get("priority", 0)) for row in columns]
    return (NAME, *made)


def columns_of(info: ResourceInfo, custom: list[Object] | None) -> tuple[Column, ...]:
    """Return the columns of a resource; ``custom`` are a definition's additional printer columns."""
    if custom:
        return _custom_columns(custom)
    return COLUMNS.get(info.storage, DEFAULT)


def _definition(column: Column) -> Object:
    kind = "name" if column is NAME else ""
    return {
        "name": column.name,
        "type": column.type,
        "format": kind,
        "description": "",
        "priority": column.priority,
    }


def _row_object(obj: Object, include: str) -> Object | None:
    match include:
        case "None":
            return None
        case "Object":
            return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(
    items: list[Item], info: ResourceInfo, columns: list[Object] | None, metadata: Object, include: str
) -> Object:
    """Return a Table; ``include`` says what its rows carry: Metadata, Object or None."""
    chosen = columns_of(info, columns)
    rows = [
        {"cells": [value(column, item.object) for column in chosen], "object": _row_object(item.object, include)}
        for item in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in chosen],
        "rows": rows,
    }


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
