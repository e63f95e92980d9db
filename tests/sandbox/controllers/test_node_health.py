"""Conditions, taints and who has to leave, as data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.controllers import node_health

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE = "node.kubernetes.io/"


def node(*taints: tuple[str, str], unschedulable: bool = False, **conditions: str) -> dict[str, Any]:
    """Return a node."""
    spec: dict[str, Any] = {"taints": [{"key": key, "effect": effect} for key, effect in taints]}
    if unschedulable:
        spec["unschedulable"] = True
    rows = [{"type": kind, "status": status, "lastTransitionTime": "t"} for kind, status in conditions.items()]
    return {"metadata": {"name": "a"}, "spec": spec, "status": {"conditions": rows}}


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (node(Ready="True"), []),
        (node((NODE + "not-ready", "NoSchedule"), Ready="True"), []),
        (node((NODE + "not-ready", "NoSchedule")), []),
        (node(), []),
        (node(Ready="False"), [(NODE + "not-ready", "NoSchedule"), (NODE + "not-ready", "NoExecute")]),
        (node(Ready="Unknown"), [(NODE + "unreachable", "NoSchedule"), (NODE + "unreachable", "NoExecute")]),
        (node(Ready="True", DiskPressure="True"), [(NODE + "disk-pressure", "NoSchedule")]),
        (node(Ready="True", NetworkUnavailable="True"), [(NODE + "network-unavailable", "NoSchedule")]),
        (node(Ready="True", unschedulable=True), [(NODE + "unschedulable", "NoSchedule")]),
        (node((NODE + "unschedulable", "NoSchedule"), ("mine", "NoExecute"), Ready="True"), [("mine", "NoExecute")]),
    ],
)
def test_taints_follow_conditions(one: dict[str, Any], wanted: list[tuple[str, str]]) -> None:
    """And leave those of other keys alone; who has no conditions gets no taint, as on a real cluster."""
    assert [(taint["key"], taint["effect"]) for taint in node_health.taints(one, NOW)] == wanted


def test_present_taints_are_not_written_anew() -> None:
    """Otherwise the controller would never come to rest."""
    once = node_health.taints(node(Ready="Unknown"), NOW)
    again = {"metadata": {"name": "a"}, "spec": {"taints": once}, "status": node(Ready="Unknown")["status"]}
    assert node_health.taints(again, datetime(2027, 1, 1, tzinfo=UTC)) == once


def test_silence_makes_every_condition_unknown_once() -> None:
    """A condition that was never there says so."""
    conditions = node_health.conditions_of_silence(node(Ready="True"), NOW)
    found = {one["type"]: (one["status"], one["reason"]) for one in conditions}
    assert found["Ready"] == ("Unknown", "NodeStatusUnknown")
    assert found["PIDPressure"] == ("Unknown", "NodeStatusNeverUpdated")
    silent = {"metadata": {"name": "a"}, "status": {"conditions": conditions}}
    assert node_health.conditions_of_silence(silent, datetime(2027, 1, 1, tzinfo=UTC)) == conditions


@pytest.mark.parametrize(
    ("tolerations", "left"),
    [
        ([], 0.0),
        ([{"operator": "Exists"}], None),
        ([{"operator": "Exists", "tolerationSeconds": 300}], 300.0),
        (
            [
                {"key": "a", "operator": "Exists", "tolerationSeconds": 30},
                {"operator": "Exists", "tolerationSeconds": 60},
            ],
            30.0,
        ),
        ([{"key": "a", "operator": "Exists"}], 0.0),
        ([{"operator": "Exists", "tolerationSeconds": -1}], 0.0),
    ],
)
def test_how_long_a_pod_may_stay(tolerations: list[dict[str, Any]], left: float | None) -> None:
    """The shortest toleration counts; a taint that is not tolerated leaves no time."""
    taints = [{"key": key, "effect": "NoExecute"} for key in ("a", "b")] + [{"key": "c", "effect": "NoSchedule"}]
    assert node_health.seconds_left({"spec": {"tolerations": tolerations}}, taints) == left
