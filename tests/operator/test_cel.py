"""CEL rules refuse nothing that the loader accepts, and use its messages.

cel-python evaluates the rules on a stored object.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import pytest
from celpy import json_to_cel

from gpu_provision.inventory.document import SourceError, read_source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.operator.crd import RULES_KEY, Schema, spec_schema, supports_cel_rules
from gpu_provision.operator.stack import NAMESPACE_ANNOTATION, inventory_of, namespace_changed, stack_of
from gpu_provision.sandbox.apiserver.custom_resources import to_json_schema
from tests.operator.conftest import REPOSITORY, store_form, stored_stack
from tests.operator.rule_cases import CASES, SECRET, Case, stack

BAD = sorted((REPOSITORY / "tests/inventory/bad").glob("*.yaml"))
IN_SHAPE = jsonschema.Draft202012Validator(to_json_schema(spec_schema()))


_RESERVED = {"namespace": "__namespace__"}
"""Keys that are reserved words of CEL; Kubernetes escapes them with underscores."""

_MAP_OF_SOME = re.compile(r"\.map\((?P<name>\w+), (?P<which>.+), (?P<what>[\w.]+)\)")
"""A macro that cel-python lacks: those entries for which something holds, each made into something."""

_SCHEMA = spec_schema(rules=True)
_ENVIRONMENT = celpy.Environment()


@functools.cache
def program(text: str) -> celpy.Runner:
    known = _MAP_OF_SOME.sub(r".filter(\g<name>, \g<which>).map(\g<name>, \g<what>)", text)
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(known))


def refusals(spec: Any, before: Any = None, schema: Schema = _SCHEMA) -> Iterator[str]:
    """Yield the messages of the rules that a stored spec breaks, without transition rules for a new one."""
    for rule in schema.get(RULES_KEY, ()):
        if "oldSelf" in rule["rule"] and before is None:
            continue
        known = {"self": _escaped(spec, schema), "oldSelf": _escaped(before, schema)}
        activation = {name: json_to_cel(item) for name, item in known.items() if item is not None}
        if not program(rule["rule"]).evaluate(activation):
            message = rule.get("messageExpression")
            yield str(program(message).evaluate(activation)) if message else rule["message"]
    for key, part in schema.get("properties", {}).items():
        if isinstance(spec, dict) and key in spec:
            yield from refusals(spec[key], before.get(key) if isinstance(before, dict) else None, part)


def _escaped(value: Any, schema: Schema) -> Any:
    """Return a value with properties named as in CEL; keys of maps do not change."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    parts = schema["properties"]
    return {_RESERVED.get(key, key): _escaped(item, parts.get(key, {})) for key, item in value.items()}


def findings(stack: dict[str, Any], before: dict[str, Any] | None = None) -> set[str]:
    """Return the findings of loader and controller for a stack in the namespace of the previous one."""
    inventory, found = inventory_of(stack)
    home = inventory_of(before)[0] if before else None
    annotations = {NAMESPACE_ANNOTATION: home.cluster.namespace} if home else {}
    moved = inventory and namespace_changed({"metadata": {"name": "prod", "annotations": annotations}}, inventory)
    return {finding.what for finding in (*found, *filter(None, [moved]))}


def test_no_rule_refuses_what_the_loader_takes(file: Path) -> None:
    stack = stored_stack(file)
    assert [*refusals(stack["spec"]), *refusals(stack["spec"], stack["spec"])] == []


@pytest.mark.parametrize("file", BAD, ids=lambda file: str(file.stem))
def test_rule_refuses_only_what_the_loader_refuses(file: Path) -> None:
    """Regardless of other errors."""
    try:
        stack = store_form(stack_of({**parse(read_source(file))[0].data, "name": "prod"}))
    except SourceError:
        return
    if IN_SHAPE.is_valid(stack["spec"]):  # a server looks at the schema first
        assert set(refusals(stack["spec"])) <= findings(stack)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rule_refuses_in_the_words_of_the_finding(case: Case) -> None:
    """tests/contract/api/test_stack_rules.py has the same cases for an API server.

    The status reports a proxy that a server without rules stores, or another namespace.
    """
    new = store_form(stack(case.spec))
    before = None if case.before is None else store_form(stack(case.before))
    assert [*refusals(new["spec"], before and before["spec"])] == ([case.message] if case.message else [])
    assert case.message in findings(new, before) if case.message else findings(new, before) == set()
    assert SECRET not in str(inventory_of(new)[1])


def _parts(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from _parts(part, (*path, key))


def test_every_rule_is_about_keys_with_a_type() -> None:
    """A server refuses a rule that names an unknown key or a key without a type.

    Servers from 1.29 to 1.36 compute no bound for the cost of a messageExpression with filter, and refuse the
    definition; older ones do not show it.
    """
    ruled = {path: part for path, part in _parts(_SCHEMA) if RULES_KEY in part}
    assert ruled.keys() == {(), ("rollout", "canary"), ("proxy",)}
    for part in ruled.values():
        known = part["properties"]
        for rule in part[RULES_KEY]:
            for key in re.findall(r"\b(?:self|oldSelf)\.(\w+)", rule["rule"]):
                assert known[key]["type"], key
            assert "fieldPath" not in rule or rule["fieldPath"].removeprefix(".") in known
            assert ".filter(" not in str(rule)


@pytest.mark.parametrize(
    ("kubernetes", "known"),
    [("v1.20.2", False), ("1.28", False), ("v1.29.0-gke.1", True), ("v1.34.1+k3s1", True), ("", True), ("2.0", True)],
)
def test_rules_are_for_servers_that_have_them_for_good(kubernetes: str, *, known: bool) -> None:
    assert supports_cel_rules(kubernetes) is known
