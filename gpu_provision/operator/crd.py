"""The CustomResourceDefinition of stacks: structural schema, CEL rules, status and columns."""

from __future__ import annotations

import re
from typing import Any

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ADDRESSES, ANY, is_about_cluster, resolved, schema
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.progress import State
from gpu_provision.operator.stack import GROUP, NAMESPACE_IS_FIXED, PLURAL, PROXY_NEEDS_NONE, STACK, VERSION

Schema = dict[str, Any]

_SINCE = 29  # generally available; one version before, a server may have them switched off


def are_known(kubernetes: str) -> bool:
    """Whether an API server of a version takes rules in CEL; one that is not known counts as new."""
    found = re.match(r"v?1\.(\d+)", kubernetes)
    return not found or int(found[1]) >= _SINCE


def _namespace(whose: str) -> str:
    """Return CEL for a stack's namespace; a word of CEL's own is written with underscores."""
    default = schema()["properties"]["cluster"]["properties"]["namespace"]["default"]
    said = f"has({whose}.cluster) && has({whose}.cluster.__namespace__)"
    return f"({said} ? {whose}.cluster.__namespace__ : '{default}')"


_KNOWN_POOL = "has(self.pools) && node.pool in self.pools"

RULES: dict[KeyPath, list[dict[str, str]]] = {
    (): [
        {
            "rule": f"!has(self.nodes) || self.nodes.all(node, {_KNOWN_POOL})",
            "message": "There is no pool of the name that a node has.",
            "messageExpression": f"'There is no pool ' + self.nodes.map(node, !({_KNOWN_POOL}), node.pool)[0] + '.'",
            "fieldPath": ".nodes",
        },
        {"rule": f"{_namespace('self')} == {_namespace('oldSelf')}", "message": NAMESPACE_IS_FIXED},
    ],
    ("rollout", "canary"): [
        {
            "rule": "!has(self.nodes) || self.nodes > 0 || (has(self.node_selector) && self.node_selector.size() > 0)",
            "message": "A canary of 0 nodes without a node_selector is none, so no node may ever follow it.",
            "fieldPath": ".nodes",
        }
    ],
    ("proxy",): [
        {"rule": f"!has(self.{key}) || !self.{key}.contains('@')", "message": PROXY_NEEDS_NONE, "fieldPath": f".{key}"}
        for key in ADDRESSES
    ],
}
"""Rules in CEL by the path of the value in the spec that they are about, in the words of the loader's findings.

Where a ``messageExpression`` fails, the message is used. ``oldSelf`` is the value before.
"""

DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
CRD_NAME = f"{PLURAL}.{GROUP}"
MOST_PROBLEMS = 50
"""So many nodes are named in a status; it has to stay small on 5,000."""

LABELS = {"app.kubernetes.io/name": "gpu-provision", "app.kubernetes.io/component": "operator"}
"""Of every object that makes up the operator. They are no members of a stack, so that none prunes them."""

RULES_KEY = "x-kubernetes-validations"
"""Under which a schema has rules in CEL; API servers name it, too, where they refuse one."""

_COLUMNS = (
    ("Release", "string", ".status.release", "Release that the stack is at, or on its way to."),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether all is as declared, and proven."),
    ("Nodes", "string", ".status.nodes.summary", "GPU nodes that are ready, of all."),
    ("GPUs", "integer", ".status.nodes.gpus", "GPUs that pods can have."),
    ("Rollout", "string", ".status.rollout.summary", "How far the replacement of drivers is."),
    ("Age", "date", ".metadata.creationTimestamp", "Since when there is the stack."),
)


def definition(*, rules: bool = False) -> Manifest:
    """Return the CustomResourceDefinition, with rules in CEL for servers that take them (`are_known`)."""
    names = {
        "kind": STACK.kind,
        "listKind": f"{STACK.kind}List",
        "plural": PLURAL,
        "singular": STACK.kind.lower(),
        "shortNames": ["gpus"],
        "categories": ["gpu-provision"],
    }
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text} for name, kind, path, text in _COLUMNS
    ]
    text = "A GPU stack: which nodes of this cluster have which GPUs, which software they run, and how that stands."
    name = {"type": "string", "pattern": schema()["$defs"]["name"]["pattern"]}
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": name}},
        "spec": spec_schema(rules=rules),
        "status": _status_schema(),
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {
            "openAPIV3Schema": {"description": text, "type": "object", "required": ["spec"], "properties": properties}
        },
    }
    return {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": CRD_NAME, "labels": dict(LABELS)},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _status_schema() -> Schema:
    condition = _object(
        "A condition as all of Kubernetes has it.",
        required=("type", "status", "lastTransitionTime", "reason", "message"),
        type=_text("Ready, Progressing or Degraded."),
        status=_text("Whether it holds.", enum=["True", "False", "Unknown"]),
        observedGeneration=_number("Generation of the spec that it is about.", format="int64"),
        lastTransitionTime=_text("Since when.", format="date-time"),
        reason=_text("Why, in one word."),
        message=_text("Why, in a sentence."),
    )
    component = _object(
        "One component on all nodes.",
        required=("name",),
        name=_text("Its name, as the inventory's key."),
        version=_text("Its version as declared."),
        desired=_number("Nodes that are to have it."),
        ready=_number("Nodes on which it is as declared."),
        state=_text("Where it stands as a whole.", enum=[state.value for state in State]),
        reason=_text("Why it is not ready."),
    )
    problem = _object(
        "A node that is not ready.",
        required=("name",),
        name=_text("Name of the node."),
        component=_text("The first component that is not ready on it."),
        state=_text("Where that component stands on it.", enum=[state.value for state in State]),
        reason=_text("The first cause, as `gpu-provision status` tells it."),
    )
    problems = f"Nodes with a problem, by name: {MOST_PROBLEMS} at most. `gpu-provision status` tells all."
    nodes = _object(
        "The GPU nodes.",
        total=_number("GPU nodes that belong to the stack."),
        ready=_number("Those on which all components are as declared."),
        gpus=_number("GPUs that pods can have."),
        summary=_text("Ready of all, such as 3/4."),
        problems=_list(problems, problem, key="name") | {"maxItems": MOST_PROBLEMS},
    )
    rollout = _object(
        "The replacement of drivers.",
        done=_number("Nodes that have the new one."),
        underWay=_number("Nodes on which it is being replaced."),
        waiting=_number("Nodes whose turn has not come."),
        failed=_number("Nodes on which it failed."),
        summary=_text("Done of all, such as 3/8; empty while no driver has to be replaced."),
    )
    return _object(
        "How the stack stands; written by the controller alone.",
        observedGeneration=_number("Generation of the spec that this status is about.", format="int64"),
        release=_text("Release that the stack is at, or on its way to."),
        conditions=_list("The state at a glance.", condition, key="type"),
        components=_list("The components, in the order of their dependencies.", component, key="name"),
        nodes=nodes,
        rollout=rollout,
    )


def _object(description: str, /, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    found: Schema = {"description": description, "type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {})


def _list(description: str, items: Schema, *, key: str) -> Schema:
    return {"description": description, "type": "array", "items": items, **_keyed(key)}


def _keyed(key: str) -> Schema:
    """Return that two writers can each have items of a list of their own."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _text(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "string", **more}


def _number(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0, **more}


_BOUNDS = ("enum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern")
_SAME = ("description", *_BOUNDS, "type")
"""Keywords that mean the same. ``required`` is not among them: it may name keys that a stack does not have."""

_DESCRIPTIONS: dict[KeyPath, str] = {
    (): "Which nodes of this cluster have which GPUs, and which software they run: the keys of an inventory.",
    ("cluster",): "Where in the cluster the operands are.",
}
"""Descriptions of what is more in a file than in the cluster."""

_NODES = ("nodes",)


def spec_schema(*, rules: bool = False) -> Schema:
    """Return the schema of a stack's ``spec``, with or without rules in CEL."""
    made = _translated(schema(), (), in_entry=False)
    return _with_rules(made, ()) if rules else made


def _with_rules(part: Schema, path: KeyPath) -> Schema:
    """Return a part of a schema with its rules; none is about an entry of a list or map."""
    properties = {key: _with_rules(own, (*path, key)) for key, own in part.get("properties", {}).items()}
    rules = {RULES_KEY: [dict(rule) for rule in RULES[path]]} if path in RULES else {}
    return part | ({"properties": properties} if properties else {}) | rules


def _translated(part: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    """Return a part of the inventory's schema as a structural one; ``in_entry`` if it is in an entry of a list or map.

    An entry has no defaults: a pool's own setting wins over the stack's.
    """
    own = resolved(part)
    kinds, entries = own.get("type"), own.get("additionalProperties")
    result: Schema = {key: own[key] for key in _SAME if key in own} | _union(own)
    if kinds == "array":
        result["items"] = _translated(own["items"], (*path, ANY), in_entry=True)
        result |= _keyed("name") if path == _NODES else {}
        result |= {"x-kubernetes-list-type": "set"} if own.get("uniqueItems") and path != _NODES else {}
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
