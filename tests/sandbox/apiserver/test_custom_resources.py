"""Custom resources: served at once, checked by their schema, gone with their definition."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.apiserver.custom_resources import as_json_schema
from gpu_provision.sandbox.apiserver.patches import merged
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.targets import target
from tests.sandbox.apiserver.conftest import Cluster

DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "apis/example.org/v1/namespaces/default/widgets"
SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "port": {"x-kubernetes-int-or-string": True},
                "note": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    },
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def _versions(*names: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "served": True,
            "storage": name == names[0],
            "schema": {"openAPIV3Schema": SCHEMA},
            "subresources": {"status": {}},
            "additionalPrinterColumns": COLUMNS,
        }
        for name in names
    ]


def _define(cluster: Cluster, *versions: str) -> dict[str, Any]:
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]}
    spec = {
        "group": "example.org",
        "scope": "Namespaced",
        "names": names,
        "versions": _versions(*(versions or ("v1",))),
    }
    return cluster.create(DEFINITIONS, "widgets.example.org", spec=spec)


def test_a_definition_is_established_and_served_at_once(cluster: Cluster) -> None:
    """No waiting: the conditions are there in the answer to the create."""
    assert target(WIDGETS, cluster.registry.catalog) is None
    made = _define(cluster)
    assert {row["type"]: row["status"] for row in made["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert made["spec"]["names"]["listKind"] == "WidgetList"
    info = cluster.at(WIDGETS).info
    assert (info.kind, info.short_names, info.has_status) == ("Widget", ("wd",), True)


def test_objects_get_defaults_and_lose_unknown_fields(cluster: Cluster) -> None:
    """Free parts keep everything."""
    _define(cluster)
    given = {"size": 2, "typo": 1, "free": {"any": [1]}, "port": "http", "note": None}
    made = cluster.create(WIDGETS, "one", spec=given)
    assert made["spec"] == {"size": 2, "color": "red", "free": {"any": [1]}, "port": "http", "note": None}


def test_unknown_fields_of_custom_objects_are_named(cluster: Cluster) -> None:
    """So fieldValidation works for them too; inside of free parts nothing is unknown."""
    _define(cluster)
    unknown: list[str] = []
    body = {"kind": "Widget", "metadata": {}, "spec": {"size": 1, "typo": 1, "free": {"x": 1}}, "extra": 1}
    kept = cluster.registry.custom.known(body, cluster.at(WIDGETS).info, unknown)
    assert (unknown, kept["spec"]) == (["spec.typo", "extra"], {"size": 1, "free": {"x": 1}})


def test_the_status_of_a_custom_object_is_a_subresource(cluster: Cluster) -> None:
    """It does not count as a generation, and metadata is not written through it."""
    _define(cluster)
    cluster.create(WIDGETS, "one", spec={"size": 1})
    patch = {"status": {"ready": True}, "metadata": {"labels": {"a": "b"}}}
    changed = cluster.registry.change(cluster.at(f"{WIDGETS}/one/status"), lambda obj: merged(obj, patch)).object
    assert (changed["status"], changed["metadata"].get("labels"), changed["metadata"]["generation"]) == (
        {"ready": True},
        None,
        1,
    )


def test_every_served_version_shows_the_same_objects(cluster: Cluster) -> None:
    """Without a conversion only apiVersion differs."""
    _define(cluster, "v1", "v1beta1")
    cluster.create(WIDGETS, "one", spec={"size": 1})
    assert cluster.get("apis/example.org/v1beta1/namespaces/default/widgets/one")["apiVersion"] == "example.org/v1beta1"


def test_definitions_are_served_again_after_a_restart(cluster: Cluster) -> None:
    """What is stored is enough."""
    _define(cluster)
    again = Registry(cluster.store)
    assert target(WIDGETS, again.catalog) is not None


def test_bounds_of_old_schemas_are_translated() -> None:
    """Kubernetes' exclusive bounds are booleans, JSON Schema's are numbers."""
    assert as_json_schema({"minimum": 1, "exclusiveMinimum": True}) == {"exclusiveMinimum": 1}
    assert as_json_schema({"maximum": 1, "exclusiveMaximum": False}) == {"maximum": 1}
