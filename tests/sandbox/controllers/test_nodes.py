"""Node health, eviction by taints and pods of lost nodes on a cluster that runs."""

from __future__ import annotations

import asyncio
from typing import Any

from gpu_provision.sandbox.controllers.cluster import Cluster
from gpu_provision.sandbox.controllers.node_lifecycle import NodeLifecycle
from gpu_provision.sandbox.controllers.resources import EVENTS, NODES, PODS, REPLICA_SETS


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
