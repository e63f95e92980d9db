"""Findings as text, and documents that fit the published schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from gpu_provision.model.findings import Finding
from gpu_provision.output import findings, plan, status
from gpu_provision.output.findings import document, output_schema
from tests.output import samples


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = output_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_documents_fit(validator: jsonschema.Draft202012Validator) -> None:
    """A failure has none of the command's own parts; a success promises them to scripts."""
    for made in (samples.PLAN, replace(samples.PLAN, rollout=samples.ROLLOUT)):
        parts = {"hosts": status.hosts_document(samples.HOSTS), **plan.document(made)}
        validator.validate(document("plan", made.findings, **parts))
    validator.validate(document("status", **status.document(samples.STATUS)))
    validator.validate(document("apply", inventory="prod", hosts=[], **status.run_document(samples.RESULT)))
    validator.validate(document("plan", [samples.CONFLICT]))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document("plan"))


def test_every_key_is_described() -> None:
    """The schema needs no other page."""
    bare = [path for path, node in _properties(output_schema(), "") if not _described(node)]
    assert bare == []


def _described(node: Any) -> bool:
    return "description" in node or "$ref" in node


def _properties(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "properties" and "if" not in path:
                yield from ((f"{path}.{name}", below) for name, below in value.items())
            yield from _properties(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _properties(value, f"{path}[{index}]")


def test_findings_that_differ_in_the_place_alone_are_one() -> None:
    """Equal findings of several nodes are one."""
    first = Finding(code="GP403", what="the node runs ubuntu22.04", where="Node t4-1", fix="correct it")
    second, other = replace(first, where="Node t4-2"), replace(first, what="the node runs debian12", where="Node t4-3")
    assert [each.where for each in findings.merge_findings([first, second, other])] == [
        "Node t4-1, Node t4-2",
        "Node t4-3",
    ]
    assert findings.text([first, second]).count("correct it") == 1
