"""The definition is structural, and its schema has all fields of the status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.model.progress import State
from gpu_provision.operator.crd import MAX_PROBLEMS, definition, spec_schema
from gpu_provision.operator.status import StackObservation, status_of
from gpu_provision.planning.states import evaluate_states
from gpu_provision.sandbox.apiserver.custom_resources import prune
from tests.planning.builders import Stack

NOW = "2026-11-22T09:00:00Z"


def schema_of(part: str) -> dict[str, Any]:
    (version,) = definition()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


@pytest.mark.parametrize("failed", [False, True], ids=["as declared", "failing"])
def test_all_that_a_status_says_has_a_place(failed: bool) -> None:  # noqa: FBT001 - a case
    """The API server drops unknown fields silently."""
    seen = Stack().situation
    found = evaluate_states(seen)
    if failed:
        found = {key: replace(state, state=State.FAILED, reason="for a reason") for key, state in found.items()}
    status = json.loads(
        json.dumps(status_of(StackObservation(generation=3, cluster_state=seen, states=found), {}, NOW))
    )
    schema = schema_of("status")
    assert prune(status, schema) == status
    problems = schema["properties"]["nodes"]["properties"]["problems"]
    assert (problems["maxItems"], problems["items"]["properties"]["state"]["enum"]) == (MAX_PROBLEMS, [*State])


def parts(part: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every part of a schema with its path."""
    yield path, part
    for key, child in part.get("properties", {}).items():
        yield from parts(child, (*path, key))
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from parts(part[key], (*path, "*"))


def test_every_part_is_described_and_no_pattern_looks_ahead() -> None:
    """``kubectl explain`` shows the descriptions of docs/inventory.md. RE2 has no lookaround."""
    for path, part in parts(spec_schema()):
        assert part.get("description"), path
        assert not re.search(r"\(\?|\\[1-9zZA]", part.get("pattern", "")), path


def test_no_default_says_nothing() -> None:
    """A default of false, zero or empty would only hide whether a key is set."""
    assert all(part["default"] for _, part in parts(spec_schema()) if "default" in part)
