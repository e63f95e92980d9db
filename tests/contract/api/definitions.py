"""Custom resources that the tests define."""

from __future__ import annotations

from typing import Any

from tests.contract.client import Object, Server, until

GROUP = "contract.example.org"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPEC: Object = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "ratio": {"type": "number"},
        "word": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "either": {"x-kubernetes-int-or-string": True},
        "nothing": {"type": "string", "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {"id": {"type": "string"}, "n": {"type": "integer", "default": 7}},
            },
        },
        "inner": {"type": "object", "properties": {"deep": {"type": "string", "default": "down"}}},
    },
}
SCHEMA: Object = {
    "type": "object",
    "properties": {"spec": SPEC, "status": {"type": "object", "properties": {"phase": {"type": "string"}}}},
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def definition(plural: str, **version: Any) -> Object:
    kind = plural.removesuffix("s").capitalize()
    served = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {"status": {}},
        "additionalPrinterColumns": COLUMNS,
        **version,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": [kind[:3].lower()]},
            "versions": [served],
        },
    }


def is_established(server: Server, name: str) -> bool:
    conditions = server.get(f"{DEFINITIONS}/{name}").get("status", {}).get("conditions")
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or ())


def establish(server: Server, body: Object) -> str:
    """Create a definition and return the path of its resources, below their namespace."""
    server.make(DEFINITIONS, body)
    name = body["metadata"]["name"]
    until(lambda: is_established(server, name))
    plural = str(body["spec"]["names"]["plural"])
    until(lambda: server.ask("GET", f"/apis/{GROUP}/v1/{plural}").code == 200)
    return plural
