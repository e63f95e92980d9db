"""Selectors, affinity, taints and tolerations as data."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.fitting import (
    NodeView,
    pinned_nodes,
    selects,
    tolerates,
    untolerated,
    view_of,
)

VIEW = NodeView("a", {"gpu": "yes", "count": "8"}, (), unschedulable=False, allocatable={})


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return a pod spec with a required node affinity of these terms."""
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return a term of one label expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def by_name(*names: str, operator: str = "In") -> dict[str, Any]:
    """Return a term of one name field."""
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        ({"nodeSelector": {"gpu": "yes"}}, True),
        ({"nodeSelector": {"gpu": "no"}}, False),
        (affinity(expression("gpu", "In", "yes", "maybe")), True),
        (affinity(expression("gpu", "In", "no")), False),
        (affinity(expression("gpu", "NotIn", "no")), True),
        (affinity(expression("gpu", "NotIn", "yes")), False),
        (affinity(expression("none", "NotIn", "x")), True),
        (affinity(expression("gpu", "Exists")), True),
        (affinity(expression("none", "Exists")), False),
        (affinity(expression("none", "DoesNotExist")), True),
        (affinity(expression("gpu", "DoesNotExist")), False),
        (affinity(expression("count", "Gt", "7")), True),
        (affinity(expression("count", "Gt", "8")), False),
        (affinity(expression("count", "Lt", "9")), True),
        (affinity(expression("gpu", "Lt", "9")), False),
        (affinity(expression("none", "Gt", "0")), False),
        (affinity(expression("gpu", "Unknown")), False),
        (affinity(expression("gpu", "In", "no"), expression("count", "In", "8")), True),
        (affinity({**expression("gpu", "Exists"), **by_name("b")}), False),
        (affinity(by_name("a")), True),
        (affinity(by_name("a", operator="NotIn")), False),
        (affinity({}), False),
        (affinity(), False),
    ],
)
def test_node_selector_and_required_affinity(spec: dict[str, Any], fits: bool) -> None:  # noqa: FBT001  a table
    """Terms are alternatives, expressions of a term all count, an empty term matches nothing."""
    assert selects(spec, VIEW) is fits


@pytest.mark.parametrize(
    ("toleration", "answer"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"value": "v"}, False),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
    ],
)
def test_a_toleration_meets_a_taint(toleration: dict[str, Any], answer: bool) -> None:  # noqa: FBT001  a table
    """By key, value and effect; what is empty matches all of it."""
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoSchedule"}) is answer


def test_preferred_taints_do_not_count() -> None:
    """PreferNoSchedule keeps nobody away."""
    taints = [{"key": "soft", "effect": "PreferNoSchedule"}, {"key": "hard", "effect": "NoExecute"}]
    assert untolerated([], taints) == taints[1]
    assert untolerated([], taints, ("NoSchedule",)) is None


def test_names_that_a_pod_is_pinned_to() -> None:
    """Only if every alternative names nodes."""
    assert pinned_nodes(affinity(by_name("a"), by_name("b"))) == {"a", "b"}
    assert pinned_nodes(affinity(by_name("a"), expression("gpu", "Exists"))) is None
    assert pinned_nodes({}) is None


def test_views_of_equal_content_say_the_same() -> None:
    """A heartbeat changes nothing for placement, a label does."""
    node = {"metadata": {"name": "a", "labels": {"x": "1"}}, "status": {"allocatable": {"cpu": "1"}}}
    beat = {**node, "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready"}]}}
    relabeled = {**node, "metadata": {"name": "a", "labels": {"x": "2"}}}
    assert view_of(beat).says(view_of(node))
    assert not view_of(relabeled).says(view_of(node))


@pytest.mark.parametrize(
    ("selector", "answer"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
    ],
)
def test_label_selectors(selector: dict[str, Any] | None, answer: bool) -> None:  # noqa: FBT001  a table
    """None selects nothing, an empty one everything."""
    assert objects.matches(selector, {"a": "1"}) is answer
