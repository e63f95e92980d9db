"""The custom resources of Node Feature Discovery, ``nfd.k8s-sigs.io/v1alpha1``, good for 0.14 to 0.19."""

from __future__ import annotations

from typing import Any

from gpu_provision.components.objects import manifest
from gpu_provision.model.cluster import Manifest

GROUP = "nfd.k8s-sigs.io"

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}


def _map(values: Schema, description: str = "") -> Schema:
    return _described({"type": "object", "additionalProperties": values}, description)


def _list(items: Schema, description: str = "") -> Schema:
    return _described({"type": "array", "items": items}, description)


def _object(properties: dict[str, Schema], required: tuple[str, ...] = (), description: str = "") -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return _described(schema | ({"required": list(required)} if required else {}), description)


def _described(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema} if description else schema


_STRINGS = _map(_STRING)

_MATCH_EXPRESSION = _object(
    {
        "op": {
            "type": "string",
            "enum": [
                *("In", "NotIn", "InRegexp", "Exists", "DoesNotExist"),
                *("Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue", "IsFalse"),
            ],
        },
        "value": _list(_STRING),
        "type": _described(_STRING, "How values are compared; 'version' for version numbers."),
    },
    required=("op",),
    description="Compares one value of a feature.",
)

_MATCH_FEATURES = _list(
    _object(
        {
            "feature": _STRING,
            "matchExpressions": _map(_MATCH_EXPRESSION),
            "matchName": _MATCH_EXPRESSION,
        },
        required=("feature",),
    ),
    "All of these features must match.",
)

_MATCHERS = {
    "matchFeatures": _MATCH_FEATURES,
    "matchAny": _list(
        _object({"matchFeatures": _MATCH_FEATURES}, required=("matchFeatures",)),
        "At least one of these must match.",
    ),
}

_VARS = {
    "name": _STRING,
    "vars": _map(_STRING, "Variables for rules that come later."),
    "varsTemplate": _STRING,
}

_TAINT = _object(
    {
        "key": _STRING,
        "value": _STRING,
        "effect": _STRING,
        "timeAdded": {"type": "string", "format": "date-time"},
    },
    required=("effect", "key"),
)

_NODE_FEATURE = _object(
    {
        "features": _object(
            {
                "flags": _map(_object({"elements": _map({"type": "object"})}, required=("elements",))),
                "attributes": _map(_object({"elements": _STRINGS}, required=("elements",))),
                "instances": _map(
                    _object(
                        {"elements": _list(_object({"attributes": _STRINGS}, required=("attributes",)))},
                        required=("elements",),
                    )
                ),
            },
            description="What was found on the node.",
        ),
        "labels": _map(_STRING, "Labels that the node shall get."),
    },
)

_NODE_FEATURE_RULE = _object(
    {
        "rules": _list(
            _object(
                {
                    **_VARS,
                    "labels": _STRINGS,
                    "labelsTemplate": _STRING,
                    "annotations": _STRINGS,
                    "extendedResources": _STRINGS,
                    "taints": _list(_TAINT),
                    **_MATCHERS,
                },
                required=("name",),
            ),
            "Each says what nodes get whose features match.",
        )
    },
    required=("rules",),
)

_NODE_FEATURE_GROUP = _object(
    {
        "featureGroupRules": _list(
            _object({**_VARS, **_MATCHERS}, required=("name",)), "Nodes that match one belong to the group."
        )
    },
    required=("featureGroupRules",),
)

_GROUP_STATUS = _object(
    {
        "nodes": _list(_object({"name": _STRING}, required=("name",)), "The nodes that belong to the group.")
        | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    }
)


def crds() -> list[Manifest]:
    """Return the three CustomResourceDefinitions."""
    return [
        _crd("NodeFeature", "Namespaced", _NODE_FEATURE, description="The features of one node."),
        _crd(
            "NodeFeatureGroup",
            "Namespaced",
            _NODE_FEATURE_GROUP,
            status=_GROUP_STATUS,
            short_name="nfg",
            description="Nodes grouped by their features.",
        ),
        _crd(
            "NodeFeatureRule",
            "Cluster",
            _NODE_FEATURE_RULE,
            short_name="nfr",
            description="Turns features of nodes into labels, annotations, taints and extended resources.",
        ),
    ]


def _crd(  # noqa: PLR0913 -- keyword-only: just the parts in which the resources differ
    kind: str,
    scope: str,
    spec: Schema,
    *,
    description: str,
    status: Schema | None = None,
    short_name: str = "",
) -> Manifest:
    singular = kind.lower()
    properties = {"apiVersion": _STRING, "kind": _STRING, "metadata": {"type": "object"}, "spec": spec}
    version: dict[str, Any] = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": _object(properties | ({"status": status} if status else {}), ("spec",), description)
        },
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{singular}s", "singular": singular}
    return manifest(
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        f"{singular}s.{GROUP}",
        spec={
            "group": GROUP,
            "names": names | ({"shortNames": [short_name]} if short_name else {}),
            "scope": scope,
            "versions": [version | ({"subresources": {"status": {}}} if status else {})],
        },
    )
