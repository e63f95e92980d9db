"""The CustomResourceDefinition of stacks. Pure.

In ``apiextensions.k8s.io/v1``, and with nothing that Kubernetes 1.20 does not know, unless rules are asked for.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.inventory.json_schema import schema
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.progress import State
from gpu_provision.operator.stack import GROUP, PLURAL, STACK, VERSION
from gpu_provision.operator.structural_schema import Schema, spec_schema

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
        conditions=_list("The state of the stack at a glance.", _condition(), key="type"),
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
        summary=_text("Done of all, such as 3/8; empty while no driver is replaced."),
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
