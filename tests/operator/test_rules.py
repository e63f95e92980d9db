"""What an API server refuses by itself: nothing that the loader takes, and in the loader's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_provision.inventory.parse import parse
from gpu_provision.inventory.source import Unreadable, read
from gpu_provision.operator.rules import RULES, are_known
from gpu_provision.operator.stack import HOME, inventory_of, moved, stack_of
from gpu_provision.operator.structural import Schema, spec_schema
from gpu_provision.sandbox.apiserver.schemas import as_json_schema
from tests.operator import cel
from tests.operator.conftest import REPOSITORY
from tests.operator.served import as_stored, stored

BAD = sorted((REPOSITORY / "tests/inventory/bad").glob("*.yaml"))
IN_SHAPE = jsonschema.Draft202012Validator(as_json_schema(spec_schema()))
POOL = {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}


def a_stack(**spec: Any) -> dict[str, Any]:
    return as_stored(stack_of({"name": "prod", "cluster": {}, "pools": {"gpu": POOL}, **spec}))


def findings(stack: dict[str, Any]) -> set[str]:
    return {finding.what for finding in inventory_of(stack)[1]}


def test_no_rule_refuses_what_the_loader_takes(file: Path) -> None:
    stack = stored(file)
    assert cel.refusals(stack["spec"]) == []
    assert cel.refusals(stack["spec"], stack["spec"]) == []


@pytest.mark.parametrize("file", BAD, ids=lambda file: str(file.stem))
def test_a_rule_refuses_only_what_the_loader_refuses_and_says_the_same(file: Path) -> None:
    """Whatever else is wrong with it."""
    try:
        stack = as_stored(stack_of({**parse(read(file))[0].data, "name": "prod"}))
    except Unreadable:
        return
    if IN_SHAPE.is_valid(stack["spec"]):  # a server looks at the schema first
        assert set(cel.refusals(stack["spec"])) <= findings(stack)


REFUSED = {
    "There is no pool nope.": {"nodes": [{"name": "a", "pool": "gpu"}, {"name": "b", "pool": "nope"}]},
    "There is no pool gpu.": {"pools": {}, "nodes": [{"name": "a", "pool": "gpu"}]},
    "A canary of 0 nodes without a node_selector is none, so no node may ever follow it.": {
        "rollout": {"canary": {"nodes": 0}}
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_rule_is_for_is_refused_in_the_words_of_the_finding(message: str) -> None:
    stack = a_stack(**REFUSED[message])
    assert cel.refusals(stack["spec"]) == [message]
    assert message in findings(stack)


@pytest.mark.parametrize("key", ["http_proxy", "https_proxy"])
def test_a_proxy_that_needs_credentials_is_refused_and_they_are_not_told(key: str) -> None:
    """By a server that has no rules it is stored, and told in the status."""
    stack = a_stack(proxy={key: "http://proxy.example.com:3128"})
    assert cel.refusals(stack["spec"]) == []
    stack["spec"]["proxy"][key] = "http://me:secret@proxy.example.com:3128"
    (told,) = cel.refusals(stack["spec"])
    inventory, (finding,) = inventory_of(stack)
    assert inventory is None
    assert finding.what == told
    assert finding.where == f"gpustack/prod spec.proxy.{key}"
    assert "secret" not in str(finding)


@pytest.mark.parametrize("canary", [{"nodes": 2}, {"nodes": 0, "node_selector": {"a": "b"}}, {}])
def test_a_canary_of_some_nodes_is_taken(canary: dict[str, Any]) -> None:
    assert cel.refusals(a_stack(rollout={"canary": canary})["spec"]) == []


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [
        ({}, {"cluster": {"namespace": "elsewhere"}}, False),
        ({"cluster": {"namespace": "elsewhere"}}, {}, False),
        ({"cluster": {"namespace": "elsewhere"}}, {"cluster": {"namespace": "elsewhere"}}, True),
        ({}, {"cluster": {"namespace": "gpu-operator-resources"}}, True),
        ({}, {"release": "25.10.1"}, True),
    ],
)
def test_a_stack_stays_in_its_namespace(before: dict[str, Any], after: dict[str, Any], *, is_taken: bool) -> None:
    """What nobody has set is the default; who sets it to that moves nothing."""
    old, new = a_stack(**before), a_stack(**after)
    found = inventory_of(old)[0], inventory_of(new)[0]
    assert found[0]
    assert found[1]
    finding = moved({**new, "metadata": {"annotations": {HOME: found[0].cluster.namespace}}}, found[1])
    told = cel.refusals(new["spec"], old["spec"])
    assert told == ([] if is_taken else [finding.what if finding else "nothing"])
    assert (finding is None) is is_taken


def test_a_stack_that_has_not_been_installed_is_in_no_namespace_yet() -> None:
    inventory, _ = inventory_of(a_stack())
    assert inventory
    assert moved({"metadata": {}}, inventory) is None


def _parts(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from _parts(part, (*path, key))


def test_every_rule_is_in_the_definition_and_names_only_what_the_schema_types() -> None:
    """A server refuses a definition whose rules name a key that it does not know, or cannot give a type."""
    schemas = dict(_parts(spec_schema(rules=True)))
    assert {path for path, part in schemas.items() if cel.RULES in part} == {rule.path for rule in RULES}
    for rule in RULES:
        known = schemas[rule.path]["properties"]
        for key in re.findall(r"\b(?:self|oldSelf)\.(\w+)", rule.holds):
            assert known[key]["type"], key
        assert not rule.field or rule.field.removeprefix(".") in known


def test_a_definition_for_older_servers_has_none() -> None:
    assert cel.RULES not in str(spec_schema())


@pytest.mark.parametrize(
    ("kubernetes", "known"),
    [("v1.20.2", False), ("1.28", False), ("v1.29.0-gke.1", True), ("v1.34.1+k3s1", True), ("", True), ("2.0", True)],
)
def test_rules_are_for_servers_that_have_them_for_good(kubernetes: str, *, known: bool) -> None:
    assert are_known(kubernetes) is known
