"""The forms of an answer: an object, its metadata alone, or the Table that ``kubectl get`` asks for."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.objects import to_json
from gpu_provision.sandbox.apiserver.printers import COLUMNS, DEFAULT, NAME, Column, age, cell_value
from gpu_provision.sandbox.apiserver.request import JSON, Request, Response
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import StoredObject

_META = "meta.k8s.io/v1"
_ACCEPTABLE = (JSON, "application/yaml", "application/vnd.kubernetes.protobuf", "application/*", "*/*")
_JSON_PATH_STEP = re.compile(
    r"""\.(?P<key>(?:[^.\[\]\\]|\\.)+)
      | \[['"](?P<quoted>[^'"]+)['"]\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(\s*@\.(?P<field>[\w.]+)\s*==\s*['"](?P<value>[^'"]*)['"]\s*\)\]""",
    re.VERBOSE,
)


class OutputForm(NamedTuple):
    """``kind`` is Object, Table or PartialObjectMetadata; ``include`` says what a table's rows carry."""

    kind: str = "Object"
    include: str = "Metadata"


def output_form(request: Request) -> OutputForm:
    """Return the first form of the Accept header that the server knows."""
    for choice in request.accept.split(","):
        parts = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        kind = parts.get("as", "")
        if parts.get("v", "v1") != "v1":
            continue
        if kind == "Table":
            return OutputForm("Table", request.query.get("includeObject", "Metadata"))
        if kind.startswith("PartialObjectMetadata"):
            return OutputForm("PartialObjectMetadata")
        if not kind:
            break
    return OutputForm()


def is_acceptable(accept: str) -> bool:
    """Say whether an Accept header names a form that the server has; JSON stands in for YAML and protobuf."""
    choices = [choice.partition(";")[0].strip() for choice in accept.split(",")]
    return not accept or any(choice in _ACCEPTABLE for choice in choices)


def render_object(item: StoredObject, info: ResourceInfo, form: OutputForm, custom: CustomResources) -> bytes:
    """Return one object as JSON."""
    match form.kind:
        case "Table":
            return to_json(_table([item], info, custom, {}, form.include))
        case "PartialObjectMetadata":
            return to_json(_metadata_only(item.object))
    return item.json


def render_list(
    items: list[StoredObject], info: ResourceInfo, form: OutputForm, custom: CustomResources, metadata: Object
) -> bytes:
    """Return a list as JSON."""
    match form.kind:
        case "Table":
            return to_json(_table(items, info, custom, metadata, form.include))
        case "PartialObjectMetadata":
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": metadata}
            return to_json({**head, "items": [_metadata_only(item.object) for item in items]})
    head = {"kind": f"{info.kind}List", "apiVersion": info.api_version, "metadata": metadata}
    rows = (item.json if info.custom else item.json_without_kind for item in items)
    return to_json(head)[:-1] + b',"items":[' + b",".join(rows) + b"]}"


def object_response(item: StoredObject, request: Request, custom: CustomResources, code: int = 200) -> Response:
    """Return one object in the form that the caller wants."""
    return Response(code, render_object(item, request.info, output_form(request), custom))


def _metadata_only(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


def _table(
    items: list[StoredObject], info: ResourceInfo, custom: CustomResources, metadata: Object, include: str
) -> Object:
    columns = COLUMNS.get(info.storage, DEFAULT)
    if own := custom.columns(info):
        columns = (NAME, *(Column(row["name"], partial(_custom_cell, row), row["type"], _priority(row)) for row in own))
    definitions = [
        {
            "name": column.name,
            "type": column.type,
            "format": "name" if column is NAME else "",
            "description": "",
            "priority": column.priority,
        }
        for column in columns
    ]
    rows = [
        {"cells": [cell_value(column, item.object) for column in columns], "object": _row_object(item.object, include)}
        for item in items
    ]
    head = {"kind": "Table", "apiVersion": _META, "metadata": metadata}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def _priority(column: Object) -> int:
    return int(column.get("priority", 0))


def _row_object(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    return obj if include == "Object" else _metadata_only(obj)


def _custom_cell(column: Object, obj: Object) -> Any:
    values = find_json_path(obj, column["jsonPath"])
    if not values:
        return None
    if column.get("type") == "date":
        return age(values[0])
    first = values[0] if len(values) == 1 else ",".join(str(one) for one in values)
    return json.dumps(first) if isinstance(first, dict | list) else first


def find_json_path(value: Any, path: str) -> list[Any]:
    """Return what a path finds; nothing for what is missing or for a path that is not understood."""
    values, place = [value], 0
    text = path if path.startswith((".", "[")) else f".{path}"
    while place < len(text):
        step = _JSON_PATH_STEP.match(text, place)
        if step is None:
            return []
        values = [part for one in values for part in _follow(one, step)]
        place = step.end()
    return [one for one in values if one is not None]


def _follow(value: Any, step: re.Match[str]) -> list[Any]:
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
    return [row for row in value if isinstance(row, dict) and find_json_path(row, step["field"]) == [step["value"]]]
