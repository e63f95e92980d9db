"""The CustomResourceDefinition of stacks: structural schema, CEL rules, status and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ADDRESSES, ANY, is_about_cluster, resolved, schema
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.progress import State
from gpu_provision.operator.stack import GROUP, NAMESPACE_IS_FIXED, PLURAL, PROXY_NEEDS_NONE, STACK, VERSION

_SINCE = 29  # generally available; one version before, a server may have them switched off


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """One rule.

    Attributes:
        path: Of the value that it is about, in the spec.
        holds: CEL; ``self`` is the value, ``oldSelf`` what it was before, if it is named.
        message: What the finding of the loader says.
        expression: CEL that makes the message with the wrong value; where it fails, ``message`` is used.
        field: What of the value is wrong, as ``.nodes``.
    """

    path: KeyPath
    holds: str
    message: str
    expression: str = ""
    field: str = ""

    def as_written(self) -> dict[str, str]:
        """Return the rule as a definition has it."""
        said = {"rule": self.holds, "message": self.message}
        said |= {"messageExpression": self.expression} if self.expression else {}
        return said | ({"fieldPath": self.field} if self.field else {})


def rules_of(path: KeyPath) -> list[dict[str, str]]:
    """Return the rules for the value at a path of the spec."""
    return [rule.as_written() for rule in RULES if rule.path == path]


def are_known(kubernetes: str) -> bool:
    """Whether an API server of a version takes rules; one that is not known counts as new."""
    found = re.match(r"v?1\.(\d+)", kubernetes)
    return not found or int(found[1]) >= _SINCE


def _namespace(whose: str) -> str:
    """Return CEL for a stack's namespace; a word of CEL's own is written with underscores."""
    default = schema()["properties"]["cluster"]["properties"]["namespace"]["default"]
    said = f"has({whose}.cluster) && has({whose}.cluster.__namespace__)"
    return f"({said} ? {whose}.cluster.__namespace__ : '{default}')"


_KNOWN_POOL = "has(self.pools) && node.pool in self.pools"

RULES = (
    ValidationRule(
        path=(),
        holds=f"!has(self.nodes) || self.nodes.all(node, {_KNOWN_POOL})",
        message="There is no pool of the name that a node has.",
        expression=f"'There is no pool ' + self.nodes.map(node, !({_KNOWN_POOL}), node.pool)[0] + '.'",
        field=".nodes",
    ),
    ValidationRule(
        path=(),
        holds=f"{_namespace('self')} == {_namespace('oldSelf')}",
        message=NAMESPACE_IS_FIXED,
    ),
    ValidationRule(
        path=("rollout", "canary"),
        holds="!has(self.nodes) || self.nodes > 0 || (has(self.node_selector) && self.node_selector.size() > 0)",
        message="A canary of 0 nodes without a node_selector is none, so no node may ever follow it.",
        field=".nodes",
    ),
    *(
        ValidationRule(
            path=("proxy",),
            holds=f"!has(self.{key}) || !self.{key}.contains('@')",
            message=PROXY_NEEDS_NONE,
            field=f".{key}",
        )
        for key in ADDRESSES
    ),
)


DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
NAME = f"{PLURAL}.{GROUP}"
CONDITIONS = ("Ready", "Progressing", "Degraded")
MOST_PROBLEMS = 50
"""So many nodes are named in a status; it has to stay small on 5,000."""


LABELS = {"app.kubernetes.io/name": "gpu-provision", "app.kubernetes.io/component": "operator"}
"""Of every object that makes up the operator. They are no members of a stack, so that none prunes them."""


def definition(*, rules: bool = False) -> Manifest:
    """Return the CustomResourceDefinition.

    Args:
        rules: Whether with rules in CEL, for servers that take them, see `rules.are_known`.
    """
    return {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": STACK.kind,
                "listKind": f"{STACK.kind}List",
                "plural": PLURAL,
                "singular": STACK.kind.lower(),
                "shortNames": ["gpus"],
                "categories": ["gpu-provision"],
            },
            "versions": [_version(rules=rules)],
        },
    }


def _version(*, rules: bool) -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _schema(rules=rules)},
    }


def _columns() -> list[dict[str, Any]]:
    rows = (
        ("Release", "string", ".status.release", "Release that the stack is at, or on its way to."),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether all is as declared, and proven."),
        ("Nodes", "string", ".status.nodes.summary", "GPU nodes that are ready, of all."),
        ("GPUs", "integer", ".status.nodes.gpus", "GPUs that pods can have."),
        ("Rollout", "string", ".status.rollout.summary", "How far the replacement of drivers is."),
        ("Age", "date", ".metadata.creationTimestamp", "Since when there is the stack."),
    )
    return [{"name": name, "type": kind, "jsonPath": path, "description": text} for name, kind, path, text in rows]


def _schema(*, rules: bool) -> Schema:
    text = "A GPU stack: which nodes of this cluster have which GPUs, which software they run, and how that stands."
    own_name = schema()["$defs"]["name"]
    name = {"type": "string", "pattern": own_name["pattern"]}
    return {
        "description": text,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec_schema(rules=rules),
            "status": _status(),
        },
    }


def _status() -> Schema:
    return _object(
        "How the stack stands; written by the controller alone.",
        observedGeneration=_number("Generation of the spec that this status is about.", format="int64"),
        release=_text("Release that the stack is at, or on its way to."),
        conditions=_list("The state at a glance.", _condition(), key="type"),
        components=_list("The components, in the order of their dependencies.", _component(), key="name"),
        nodes=_nodes(),
        rollout=_rollout(),
    )


def _condition() -> Schema:
    return _object(
        "A condition as all of Kubernetes has it.",
        required=("type", "status", "lastTransitionTime", "reason", "message"),
        type=_text("Ready, Progressing or Degraded."),
        status=_text("Whether it holds.", enum=["True", "False", "Unknown"]),
        observedGeneration=_number("Generation of the spec that it is about.", format="int64"),
        lastTransitionTime=_text("Since when.", format="date-time"),
        reason=_text("Why, in one word."),
        message=_text("Why, in a sentence."),
    )


def _component() -> Schema:
    return _object(
        "One component on all nodes.",
        required=("name",),
        name=_text("Its name, as the inventory's key."),
        version=_text("Its version as declared."),
        desired=_number("Nodes that are to have it."),
        ready=_number("Nodes on which it is as declared."),
        state=_state("Where it stands as a whole."),
        reason=_text("Why it is not ready."),
    )


def _nodes() -> Schema:
    problem = _object(
        "A node that is not ready.",
        required=("name",),
        name=_text("Name of the node."),
        component=_text("The first component that is not ready on it."),
        state=_state("Where that component stands on it."),
        reason=_text("The first cause, as `gpu-provision status` tells it."),
    )
    text = f"Nodes with a problem, by name: {MOST_PROBLEMS} at most. `gpu-provision status` tells all."
    return _object(
        "The GPU nodes.",
        total=_number("GPU nodes that belong to the stack."),
        ready=_number("Those on which all components are as declared."),
        gpus=_number("GPUs that pods can have."),
        summary=_text("Ready of all, such as 3/4."),
        problems=_list(text, problem, key="name") | {"maxItems": MOST_PROBLEMS},
    )


def _rollout() -> Schema:
    return _object(
        "The replacement of drivers.",
        done=_number("Nodes that have the new one."),
        underWay=_number("Nodes on which it is being replaced."),
        waiting=_number("Nodes whose turn has not come."),
        failed=_number("Nodes on which it failed."),
        summary=_text("Done of all, such as 3/8; empty while no driver has to be replaced."),
    )


def _object(description: str, /, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    found: Schema = {"description": description, "type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {})


def _list(description: str, items: Schema, *, key: str) -> Schema:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return {"description": description, "type": "array", "items": items, **keyed}


def _text(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "string", **more}


def _number(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0, **more}


def _state(description: str) -> Schema:
    return _text(description, enum=[state.value for state in State])


Schema = dict[str, Any]
RULES_KEY = "x-kubernetes-validations"
"""Under which a schema has rules in CEL; API servers name it, too, where they refuse one."""


_SAME = (
    "description",
    "enum",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "type",
)
"""Keywords that mean the same. ``required`` is not among them: it may name keys that a stack does not have."""


_UNTYPED: Schema = {"type": None, "x-kubernetes-preserve-unknown-fields": True}


_SAID_OTHERWISE: dict[KeyPath, str] = {
    (): "Which nodes of this cluster have which GPUs, and which software they run: the keys of an inventory.",
    ("cluster",): "Where in the cluster the operands are.",
}
"""Descriptions of what is more in a file than in the cluster."""


_KEYED_LISTS = {("nodes",): "name"}
"""Lists whose items have a key, so that two writers can each have items of their own."""


def spec_schema(*, rules: bool = False) -> Schema:
    """Return the schema of a stack's ``spec``.

    Args:
        rules: Whether with rules in CEL, see `rules.RULES`.
    """
    made = _translated(schema(), (), in_entry=False)
    return _ruled(made, ()) if rules else made


def _ruled(part: Schema, path: KeyPath) -> Schema:
    """Return a part of a schema with its rules; none is about an entry of a list or map."""
    properties = {key: _ruled(own, (*path, key)) for key, own in part.get("properties", {}).items()}
    found = rules_of(path)
    return part | ({"properties": properties} if properties else {}) | ({RULES_KEY: found} if found else {})


def _translated(part: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    """Return a part of the schema in the words of an API server.

    Args:
        in_entry: Whether it is, or is in, an entry of a list or map.
    """
    own = resolved(part)
    result = {key: own[key] for key in _SAME if key in own} | _of_several_types(own)
    result |= _list_schema(own, path)
    result |= _map(own, path)
    result |= _mapping(own, path, in_entry=in_entry)
    if not in_entry and own.get("default"):
        result["default"] = own["default"]
    if path in _SAID_OTHERWISE:
        result["description"] = _SAID_OTHERWISE[path]
    return {key: value for key, value in result.items() if value is not None}


def _of_several_types(own: Schema) -> Schema:
    """Return what stands for a list of types, which a structural schema must not have."""
    kinds = own.get("type")
    if not isinstance(kinds, list):
        return {}
    if "object" in kinds:  # a stack takes no value from a file or a variable of the controller
        return _UNTYPED if "secret" in own["properties"] else {"type": "string"}
    if "boolean" in kinds:  # no word for it: its ``enum`` holds all that it can be
        return _UNTYPED
    return {"type": None, "x-kubernetes-int-or-string": True}


def _list_schema(own: Schema, path: KeyPath) -> Schema:
    if own.get("type") != "array":
        return {}
    items: Schema = {"items": _translated(own["items"], (*path, ANY), in_entry=True)}
    if path in _KEYED_LISTS:
        return {**items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [_KEYED_LISTS[path]]}
    return {**items, "x-kubernetes-list-type": "set"} if own.get("uniqueItems") else items


def _map(own: Schema, path: KeyPath) -> Schema:
    entries = own.get("additionalProperties")
    if not isinstance(entries, dict):
        return {}
    return {"additionalProperties": _translated(entries, (*path, ANY), in_entry=True)}


def _mapping(own: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    if own.get("type") != "object" or "properties" not in own:
        return {}
    kept = {key: part for key, part in own["properties"].items() if is_about_cluster((*path, key))}
    required = [key for key in own.get("required", ()) if key in kept and path]
    properties = {key: _translated(part, (*path, key), in_entry=in_entry) for key, part in kept.items()}
    return {"properties": properties, "required": required or None}
