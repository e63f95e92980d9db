"""Tables: what ``kubectl get`` prints, for built-in and custom resources."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.cells import since
from gpu_provision.sandbox.apiserver.columns import COLUMNS, DEFAULT, NAME, Column, value
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.jsonpath import found
from gpu_provision.sandbox.apiserver.resources import ResourceInfo


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
