"""Findings as text."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.model.findings import Finding
from gpu_provision.output import findings


def test_findings_that_differ_in_the_place_alone_are_one() -> None:
    """What is wrong with one more node is the same cause."""
    first = Finding(code="GP403", what="the node runs ubuntu22.04", where="Node t4-1", fix="correct it")
    second, other = replace(first, where="Node t4-2"), replace(first, what="the node runs debian12", where="Node t4-3")
    assert [each.where for each in findings.merged([first, second, other])] == ["Node t4-1, Node t4-2", "Node t4-3"]
    assert findings.text([first, second]).count("correct it") == 1
