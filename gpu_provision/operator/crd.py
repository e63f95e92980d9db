"""The CustomResourceDefinition of stacks: structural schema, CEL rules, status and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpu_provision.components.objects import is_at_least
from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ANY, is_about_cluster, resolve_ref, schema
from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.stack import GROUP, PLURAL

Schema = dict[str, Any]

CRD_NAME = f"{PLURAL}.{GROUP}"
MAX_PROBLEMS = 50  # nodes named in a status, which has to stay small in a cluster of 5,000

# Labels of every object of the operator. These are no members of a stack, so no run prunes them.
LABELS = {"app.kubernetes.io/name": "gpu-provision", "app.kubernetes.io/component": "operator"}
# The schema's key of CEL rules; an API server that refuses a rule names the key in its message.
RULES_KEY = "x-kubernetes-validations"


def supports_cel_rules(kubernetes: str) -> bool:
    """Whether an API server has CEL rules: by default since 1.29; an unknown version counts as new."""
    return is_at_least(kubernetes, (1, 29))


def _template() -> dict[str, Any]:
    template: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("crd.yaml").read_text(encoding="utf-8"))
    return template


def definition(*, rules: bool = False) -> Manifest:
    """Return the CustomResourceDefinition, with CEL rules for servers that have them (`supports_cel_rules`)."""
    crd: Manifest = _template()["definition"]
    parts = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts["metadata"]["properties"]["name"]["pattern"] = schema()["$defs"]["name"]["pattern"]
    parts["spec"] = spec_schema(rules=rules)
    return crd


_BOUNDS = ("enum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern")
# Keywords with the same meaning in both. `required` is not among them, since it may name keys that a stack lacks.
_COPIED_KEYWORDS = ("description", *_BOUNDS, "type")
# Descriptions of parts that have more keys in a file than in the cluster.
_DESCRIPTIONS: dict[KeyPath, str] = {
    (): "Which nodes of this cluster have which GPUs, and which software they run: the keys of an inventory.",
    ("cluster",): "Where in the cluster the operands are.",
}
# Two field managers can each own items of such a list.
_KEYED_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


def spec_schema(*, rules: bool = False) -> Schema:
    """Return the schema of a stack's ``spec``, with or without CEL rules."""
    spec = _to_structural(schema(), (), in_entry=False)
    for path, part_rules in _template()["rules"].items() if rules else ():
        part = spec
        for key in filter(None, path.split(".")):
            part = part["properties"][key]
        part[RULES_KEY] = part_rules
    return spec


def _to_structural(part: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    """Return a part of the inventory's schema as a structural schema; ``in_entry``: below an entry of a list or map.

    An entry has no defaults: a pool's own setting wins over the stack's.
    """
    own = resolve_ref(part)
    kinds, entries = own.get("type"), own.get("additionalProperties")
    result: Schema = {key: own[key] for key in _COPIED_KEYWORDS if key in own} | _union_type(own)
    if kinds == "array":
        result["items"] = _to_structural(own["items"], (*path, ANY), in_entry=True)
        result |= _KEYED_BY_NAME if path == ("nodes",) else {}
        result |= {"x-kubernetes-list-type": "set"} if own.get("uniqueItems") and path != ("nodes",) else {}
    if isinstance(entries, dict):
        result["additionalProperties"] = _to_structural(entries, (*path, ANY), in_entry=True)
    if entries is True:
        result["x-kubernetes-preserve-unknown-fields"] = True
    if kinds == "object" and "properties" in own:
        kept = {key: each for key, each in own["properties"].items() if is_about_cluster((*path, key))}
        properties = {key: _to_structural(each, (*path, key), in_entry=in_entry) for key, each in kept.items()}
        result["properties"] = properties
        result["required"] = [key for key in own.get("required", ()) if key in kept and path] or None
    if not in_entry and own.get("default"):
        result["default"] = own["default"]
    if path in _DESCRIPTIONS:
        result["description"] = _DESCRIPTIONS[path]
    return {key: value for key, value in result.items() if value is not None}


def _union_type(own: Schema) -> Schema:
    """Return the structural form of a list of types, which a structural schema must not have."""
    kinds = own.get("type")
    if not isinstance(kinds, list):
        return {}
    if "object" in kinds and "secret" not in own["properties"]:
        return {"type": "string"}  # a stack reads no file and no variable of the controller
    if {"object", "boolean", "array"}.intersection(kinds):  # of booleans, the ``enum`` has all values
        return {"type": None, "x-kubernetes-preserve-unknown-fields": True}
    return {"type": None, "x-kubernetes-int-or-string": True}
