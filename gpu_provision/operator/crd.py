"""The CustomResourceDefinition of stacks: structural schema, CEL rules, status and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpu_provision.components.objects import is_at_least
from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ANY, is_about_cluster, resolve_ref, schema
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.operator.stack import GROUP, PLURAL

Schema = dict[str, Any]

DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
CRD_NAME = f"{PLURAL}.{GROUP}"
MOST_PROBLEMS = 50  # so many nodes are named in a status; it has to stay small on 5,000

# Of every object that makes up the operator. They are no members of a stack, so that none prunes them.
LABELS = {"app.kubernetes.io/name": "gpu-provision", "app.kubernetes.io/component": "operator"}
# Under which a schema has rules in CEL; API servers name it, too, where they refuse one.
RULES_KEY = "x-kubernetes-validations"


def are_known(kubernetes: str) -> bool:
    """Whether an API server takes rules in CEL: by default since 1.29; an unknown version counts as new."""
    return is_at_least(kubernetes, (1, 29))


def _template() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("crd.yaml").read_text(encoding="utf-8"))
    return found


def definition(*, rules: bool = False) -> Manifest:
    """Return the CustomResourceDefinition, with rules in CEL for servers that take them (`are_known`)."""
    found: Manifest = _template()["definition"]
    parts = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts["metadata"]["properties"]["name"]["pattern"] = schema()["$defs"]["name"]["pattern"]
    parts["spec"] = spec_schema(rules=rules)
    return found


_BOUNDS = ("enum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern")
# Keywords that mean the same. `required` is not among them: it may name keys that a stack does not have.
_SAME = ("description", *_BOUNDS, "type")
# Descriptions of what is more in a file than in the cluster.
_DESCRIPTIONS: dict[KeyPath, str] = {
    (): "Which nodes of this cluster have which GPUs, and which software they run: the keys of an inventory.",
    ("cluster",): "Where in the cluster the operands are.",
}
# Two writers can each have items of such a list of their own.
_KEYED_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


def spec_schema(*, rules: bool = False) -> Schema:
    """Return the schema of a stack's ``spec``, with or without rules in CEL."""
    made = _translated(schema(), (), in_entry=False)
    for path, said in _template()["rules"].items() if rules else ():
        part = made
        for key in filter(None, path.split(".")):
            part = part["properties"][key]
        part[RULES_KEY] = said
    return made


def _translated(part: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    """Return a part of the inventory's schema as a structural one; ``in_entry`` if it is in an entry of a list or map.

    An entry has no defaults: a pool's own setting wins over the stack's.
    """
    own = resolve_ref(part)
    kinds, entries = own.get("type"), own.get("additionalProperties")
    result: Schema = {key: own[key] for key in _SAME if key in own} | _union(own)
    if kinds == "array":
        result["items"] = _translated(own["items"], (*path, ANY), in_entry=True)
        result |= _KEYED_BY_NAME if path == ("nodes",) else {}
        result |= {"x-kubernetes-list-type": "set"} if own.get("uniqueItems") and path != ("nodes",) else {}
    if isinstance(entries, dict):
        result["additionalProperties"] = _translated(entries, (*path, ANY), in_entry=True)
    if kinds == "object" and "properties" in own:
        kept = {key: each for key, each in own["properties"].items() if is_about_cluster((*path, key))}
        properties = {key: _translated(each, (*path, key), in_entry=in_entry) for key, each in kept.items()}
        result["properties"] = properties
        result["required"] = [key for key in own.get("required", ()) if key in kept and path] or None
    if not in_entry and own.get("default"):
        result["default"] = own["default"]
    if path in _DESCRIPTIONS:
        result["description"] = _DESCRIPTIONS[path]
    return {key: value for key, value in result.items() if value is not None}


def _union(own: Schema) -> Schema:
    """Return what stands for a list of types, which a structural schema must not have."""
    kinds = own.get("type")
    if not isinstance(kinds, list):
        return {}
    if "object" in kinds and "secret" not in own["properties"]:
        return {"type": "string"}  # a stack takes no value from a file or a variable of the controller
    if "object" in kinds or "boolean" in kinds:  # no word for it: its ``enum`` holds all that it can be
        return {"type": None, "x-kubernetes-preserve-unknown-fields": True}
    return {"type": None, "x-kubernetes-int-or-string": True}
