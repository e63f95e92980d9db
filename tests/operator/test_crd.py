"""The definition of stacks: structural, and with a place for all that a status says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.inventory import schema
from gpu_provision.kube.observe import MEMBER_KINDS
from gpu_provision.kube.resources import KINDS
from gpu_provision.model.progress import State
from gpu_provision.operator.crd import CRD_NAME, definition, spec_schema
from gpu_provision.operator.stack import GROUP, STACK, VERSION
from gpu_provision.operator.status import MOST_PROBLEMS, Reason, StackObservation, StackProblem, status_of
from gpu_provision.planning.states import states
from gpu_provision.sandbox.apiserver.custom_resources import prune
from tests.planning.builders import Stack

NOW = "2026-11-22T09:00:00Z"
ANNOTATION_BYTES = 256 * 1024


def schema_of(part: str) -> dict[str, Any]:
    (version,) = definition()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def test_kubectl_can_keep_the_definition_in_an_annotation() -> None:
    """``kubectl apply`` does so, and all annotations together have a limit."""
    assert len(json.dumps(definition())) < ANNOTATION_BYTES / 2


def test_names_agree() -> None:
    """The client's table, the object and the definition name the same resource."""
    spec = definition()["spec"]
    assert (f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"]) == STACK
    assert KINDS[STACK] == spec["names"]["plural"]
    assert f"{KINDS[STACK]}.{GROUP}" == CRD_NAME
    assert spec["versions"][0]["name"] == VERSION


def test_a_stack_is_never_a_member_of_one() -> None:
    """Pruning would delete what declares it."""
    assert STACK not in MEMBER_KINDS


@pytest.mark.parametrize("failed", [False, True], ids=["as declared", "failing"])
def test_all_that_a_status_says_has_a_place(failed: bool) -> None:  # noqa: FBT001 - a case
    """A key that the definition does not name is dropped by the server in silence."""
    seen = Stack().situation
    found = states(seen)
    if failed:
        found = {key: replace(state, state=State.FAILED, reason="for a reason") for key, state in found.items()}
    standing = StackObservation(generation=3, release="26.7.0", seen=seen, states=found)
    status = json.loads(json.dumps(status_of(standing, {}, NOW)))
    unknown: list[str] = []
    assert prune(status, schema_of("status"), unknown=unknown) == status
    assert unknown == []
    assert {row["type"] for row in status["conditions"]} == {"Ready", "Progressing", "Degraded"}
    assert bool(status["nodes"]["problems"]) is failed


def test_a_status_without_a_look_has_its_place_too() -> None:
    """A stack that cannot be used has conditions alone."""
    status = status_of(StackObservation(generation=1, problem=StackProblem(Reason.INVALID, "GP130")), {}, NOW)
    assert prune(status, schema_of("status")) == status


def test_as_many_nodes_are_named_as_the_definition_takes() -> None:
    """More would have the whole status refused."""
    assert schema_of("status")["properties"]["nodes"]["properties"]["problems"]["maxItems"] == MOST_PROBLEMS


def test_printer_columns_read_what_a_status_has() -> None:
    """A path that leads nowhere is an empty column."""
    (version,) = definition()["spec"]["versions"]
    known = schema_of("status")["properties"]
    for column in version["additionalPrinterColumns"]:
        head, _, rest = column["jsonPath"].removeprefix(".").partition(".")
        part = known
        for step in rest.partition("[")[0].split(".") if head == "status" else ():
            assert step in part, column
            part = part[step].get("properties", {})


WORDS = {
    "additionalProperties",
    "default",
    "description",
    "enum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
}


def parts(part: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every part of a schema with its path."""
    yield path, part
    for key, child in part.get("properties", {}).items():
        yield from parts(child, (*path, key))
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from parts(part[key], (*path, "*"))


def at(*path: str) -> dict[str, Any]:
    """Return the part of the spec's schema at a path."""
    return dict(parts(spec_schema()))[path]


def test_only_words_that_an_api_server_knows_are_used() -> None:
    """Everything else is refused by the definition's own schema, or dropped in silence."""
    assert {word for _, part in parts(spec_schema()) for word in part} <= WORDS


def test_every_part_has_one_type_or_says_that_it_has_several() -> None:
    """That is what makes a schema structural."""
    for path, part in parts(spec_schema()):
        several = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & part.keys()
        assert isinstance(part.get("type"), str) != bool(several), path


def test_every_part_is_described() -> None:
    """``kubectl explain`` tells what docs/inventory.md tells."""
    assert [path for path, part in parts(spec_schema()) if not part.get("description")] == []


def test_patterns_need_no_looking_ahead_or_back() -> None:
    """Go's expressions have none; the rest of what we use means the same in both."""
    patterns = {part["pattern"] for _, part in parts(spec_schema()) if "pattern" in part}
    assert not [pattern for pattern in patterns if re.search(r"\(\?|\\[1-9zZA]", pattern)]


def test_what_the_inventory_says_of_values_holds_for_stacks_too() -> None:
    """One vocabulary: names, bounds, patterns and choices."""
    assert at("rollout", "on_failure")["enum"] == ["pause", "rollback"]
    assert at("driver", "timeout") | {"description": ""} == {
        "description": "",
        "type": "integer",
        "minimum": 1,
        "maximum": 86400,
        "default": 1200,
    }
    assert at("pools", "*", "driver", "version")["pattern"] == schema()["$defs"]["driver_version"]["pattern"]
    assert at("pools", "*", "gpu")["required"] == ["model", "count"]


def test_what_stands_beside_a_reference_wins() -> None:
    """As in the inventory: the same kind of value means something else in another place."""
    assert at("cluster", "namespace")["description"].startswith("Namespace of the operands")


@pytest.mark.parametrize("path", [("driver", "upgrade_policy", "max_unavailable"), ("gfd", "resources", "limits", "*")])
def test_numbers_and_texts_are_int_or_string(path: tuple[str, ...]) -> None:
    """The one union of types that a structural schema has."""
    assert at(*path)["x-kubernetes-int-or-string"] is True
    assert "type" not in at(*path)


def test_a_switch_with_a_third_position_takes_just_these_values() -> None:
    """``true``, ``false`` and ``auto`` have no common type."""
    assert at("driver", "enabled")["enum"] == [True, False, "auto"]


def test_nodes_have_keys_and_unique_values_are_a_set() -> None:
    """So that server-side apply merges nodes, and refuses one that is there twice."""
    assert at("nodes")["x-kubernetes-list-map-keys"] == ["name"]
    assert at("image_pull_secrets")["x-kubernetes-list-type"] == "set"


def test_entries_of_lists_and_maps_have_no_defaults() -> None:
    """A pool's own setting wins over the stack's, so there must be none that was not written."""
    assert [path for path, part in parts(spec_schema()) if "*" in path and "default" in part] == []


def test_no_default_says_nothing() -> None:
    """What is off, zero or empty is so without being said, and a check may ask who said it."""
    assert all(part["default"] for _, part in parts(spec_schema()) if "default" in part)


@pytest.mark.parametrize(
    "path",
    [
        ("name",),
        ("host_prerequisites",),
        ("ssh",),
        ("connect",),
        ("cluster", "kubeconfig"),
        ("proxy", "credentials_file"),
        ("nodes", "*", "ssh"),
        ("pools", "*", "host_prerequisites"),
    ],
)
def test_what_is_about_hosts_and_connections_is_no_part_of_it(path: tuple[str, ...]) -> None:
    """A controller in a pod has no way to hosts."""
    assert path not in dict(parts(spec_schema()))
