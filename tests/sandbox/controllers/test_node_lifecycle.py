"""Conditions, taints and who has to leave, as data."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.controllers import node_lifecycle
from gpu_provision.sandbox.controllers.cluster import Cluster
from gpu_provision.sandbox.controllers.node_lifecycle import NodeLifecycle
from gpu_provision.sandbox.controllers.resources import EVENTS, NODES, PODS, REPLICA_SETS

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
    assert [(taint["key"], taint["effect"]) for taint in node_lifecycle.taints(one, NOW)] == wanted


def test_present_taints_are_not_written_anew() -> None:
    """Otherwise the controller would never come to rest."""
    once = node_lifecycle.taints(node(Ready="Unknown"), NOW)
    again = {"metadata": {"name": "a"}, "spec": {"taints": once}, "status": node(Ready="Unknown")["status"]}
    assert node_lifecycle.taints(again, datetime(2027, 1, 1, tzinfo=UTC)) == once


def test_silence_makes_every_condition_unknown_once() -> None:
    """A condition that was never there says so."""
    conditions = node_lifecycle.conditions_of_silence(node(Ready="True"), NOW)
    found = {one["type"]: (one["status"], one["reason"]) for one in conditions}
    assert found["Ready"] == ("Unknown", "NodeStatusUnknown")
    assert found["PIDPressure"] == ("Unknown", "NodeStatusNeverUpdated")
    silent = {"metadata": {"name": "a"}, "status": {"conditions": conditions}}
    assert node_lifecycle.conditions_of_silence(silent, datetime(2027, 1, 1, tzinfo=UTC)) == conditions


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
    assert node_lifecycle.seconds_left({"spec": {"tolerations": tolerations}}, taints) == left


async def taints(lab: Any, name: Any) -> Any:
    """Return the keys and effects of a node's taints."""
    found = (await lab.api.get(NODES, name))["spec"].get("taints") or ()
    return {(one["key"].rpartition("/")[2], one["effect"]) for one in found}


def test_pods_of_a_silent_node_are_not_ready(lab: Any, template: Any) -> None:
    """Whoever counts ready pods sees it at once; a node that says itself that it is not ready speaks for its pods."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(PODS, "Pod", "p", spec=template({})["spec"])
        await lab.condition(PODS, "p", "Ready")
        cluster = Cluster(lab.api)
        strict = NodeLifecycle(cluster, grace_seconds=0.2)
        tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(strict.run())]
        try:
            await lab.condition(PODS, "p", "Ready", "False")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    lab(story)


def test_a_silent_node_becomes_unknown(lab: Any) -> None:
    """After the grace period without lease or heartbeat; unreachable taints follow."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        cluster = Cluster(lab.api)
        strict = NodeLifecycle(cluster, grace_seconds=0.2)
        tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(strict.run())]
        try:

            async def unknown() -> Any:
                conditions = (await lab.api.get(NODES, "a"))["status"]["conditions"]
                found = {one["type"]: one["status"] for one in conditions}
                return found.get("Ready") == found.get("DiskPressure") == "Unknown"

            await lab.until(unknown)

            async def unreachable() -> Any:
                return ("unreachable", "NoExecute") in await taints(lab, "a")

            await lab.until(unreachable)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    lab(story)


def test_equal_events_are_counted_and_similar_ones_combined(lab: Any, template: Any) -> None:
    """Twenty pods of one owner leave ten events and a combined one."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        labels = {"app": "x"}
        body = {"replicas": 20, "selector": {"matchLabels": labels}, "template": template(labels)}
        await lab.create(REPLICA_SETS, "ReplicaSet", "x", spec=body)
        await lab.status_of(REPLICA_SETS, "x", availableReplicas=20)

        async def combined() -> Any:
            events, _ = await lab.api.list(EVENTS, "default", field_selector="involvedObject.kind=ReplicaSet")
            return len(events) == 11 and max(one["count"] for one in events) == 10

        await lab.until(combined)

    lab(story)
