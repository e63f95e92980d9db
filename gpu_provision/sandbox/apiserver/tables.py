"""Tables: what ``kubectl get`` prints."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.resources import ResourceInfo


def table(
    items: list[Item], info: ResourceInfo, columns: list[Object] | None, metadata: Object, include: str
) -> Object:
    """Return a Table; provisional."""
    del info, columns
    rows: list[Any] = [
        {
            "cells": [item.object["metadata"]["name"], item.object["metadata"]["creationTimestamp"]],
            "object": None if include == "None" else item.object,
        }
        for item in items
    ]
    definitions = [
        {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Created At", "type": "date", "format": "", "description": "", "priority": 0},
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }
