"""The definition of stacks: one that servers from 1.20 on take, with a place for all that a status says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.kube.observe import MEMBER_KINDS
from gpu_provision.kube.resources import KINDS
from gpu_provision.model.progress import State
from gpu_provision.operator.crd import CONDITIONS, NAME, definition
from gpu_provision.operator.stack import GROUP, STACK, VERSION
from gpu_provision.operator.status import MOST_PROBLEMS, Reason, StackObservation, StackProblem, status_of
from gpu_provision.planning.states import states
from gpu_provision.sandbox.apiserver.custom_resources import pruned
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
    assert f"{KINDS[STACK]}.{GROUP}" == NAME
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
    assert pruned(status, schema_of("status"), unknown=unknown) == status
    assert unknown == []
    assert {row["type"] for row in status["conditions"]} == set(CONDITIONS)
    assert bool(status["nodes"]["problems"]) is failed


def test_a_status_without_a_look_has_its_place_too() -> None:
    """A stack that cannot be used has conditions alone."""
    status = status_of(StackObservation(generation=1, problem=StackProblem(Reason.INVALID, "GP130")), {}, NOW)
    assert pruned(status, schema_of("status")) == status


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
