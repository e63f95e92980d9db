"""Rules of a definition, evaluated as an API server does: by cel-python, on an object that is stored already."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import celpy
from celpy import json_to_cel

from gpu_provision.operator.crd import Schema, spec_schema

RULES = "x-kubernetes-validations"
_RESERVED = frozenset({"namespace"})
"""CEL's own words among our keys; Kubernetes has them written with underscores."""

_MAP_OF_SOME = re.compile(r"\.map\((?P<name>\w+), (?P<which>.+), (?P<what>[\w.]+)\)")
"""A macro that cel-python lacks: those entries for which something holds, each made into something."""

_SCHEMA = spec_schema(rules=True)
_ENVIRONMENT = celpy.Environment()


@functools.cache
def program(text: str) -> celpy.Runner:
    """Return an expression, ready to be evaluated."""
    known = _MAP_OF_SOME.sub(r".filter(\g<name>, \g<which>).map(\g<name>, \g<what>)", text)
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(known))


def refusals(spec: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    """Return the messages of the rules that a stored spec breaks.

    Args:
        before: The spec that it replaces; None for a new object, for which rules about both are left out.
    """
    return list(_refusals(_SCHEMA, spec, before))


def _refusals(schema: Schema, value: Any, before: Any) -> Iterator[str]:
    for rule in schema.get(RULES, ()):
        if "oldSelf" in rule["rule"] and before is None:
            continue
        known = {"self": _escaped(value, schema), "oldSelf": _escaped(before, schema)}
        activation = {name: json_to_cel(item) for name, item in known.items() if item is not None}
        if not program(rule["rule"]).evaluate(activation):
            yield (
                str(program(rule["messageExpression"]).evaluate(activation))
                if "messageExpression" in rule
                else (rule["message"])
            )
    for key, part in schema.get("properties", {}).items():
        if isinstance(value, dict) and key in value:
            yield from _refusals(part, value[key], before.get(key) if isinstance(before, dict) else None)


def _escaped(value: Any, schema: Schema) -> Any:
    """Return a value with its properties named as rules name them; keys of maps are as they are."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    parts = schema["properties"]
    return {
        (f"__{key}__" if key in _RESERVED else key): _escaped(item, parts.get(key, {})) for key, item in value.items()
    }
