"""Objects for tests of the API server; none of them runs."""

from __future__ import annotations

from typing import Any

from tests.contract.client import Object

NOWHERE = {"contract/absent": "has-it"}
"""A node selector that keeps pods unscheduled."""

CONTAINERS = [{"name": "main", "image": "example.org/app:1"}]


def core(namespace: str, plural: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def apps(namespace: str, plural: str, name: str = "") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def configmap(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Object:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return head if data is None else {**head, "data": data}


def pod(name: str, *, metadata: Object | None = None, **spec: Any) -> Object:
    """Return a pod that is unschedulable without ``nodeName``."""
    about = {"containers": CONTAINERS, "nodeSelector": NOWHERE, "terminationGracePeriodSeconds": 30}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {**about, **spec},
    }


def names(listed: Object) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]
