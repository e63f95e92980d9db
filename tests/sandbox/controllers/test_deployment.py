"""Deployments and ReplicaSets on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import DEPLOYMENTS, REPLICA_SETS

LABELS = {"app": "web"}


def spec(template: Any, replicas: int = 3, **more: Any) -> Any:
    """Return a Deployment's spec."""
    return {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template, **more}


async def deployed(lab: Any, template: Any, replicas: int = 3, **more: Any) -> Any:
    """Create a Deployment on three nodes and wait until it is complete."""
    for name in ("a", "b", "c"):
        await lab.node(name)
    await lab.create(DEPLOYMENTS, "Deployment", "web", spec=spec(template(LABELS), replicas, **more))
    return await lab.status_of(DEPLOYMENTS, "web", availableReplicas=replicas, updatedReplicas=replicas)


async def revisions(lab: Any) -> Any:
    """Return revision -> replicas of all ReplicaSets."""
    found, _ = await lab.api.list(REPLICA_SETS, "default")
    key = "deployment.kubernetes.io/revision"
    return {int(one["metadata"]["annotations"][key]): one["spec"]["replicas"] for one in found}


def test_a_rolling_update_keeps_enough_pods_available(lab: Any, template: Any) -> None:
    """A broken image stops at maxUnavailable; a good one finishes; going back takes the old ReplicaSet."""

    async def story(lab: Any) -> None:
        await deployed(lab, template, replicas=4)
        lab.kubelet.broken_images.add("bad")
        change = {"spec": {"template": template(LABELS, image="bad")}}
        await lab.api.patch(DEPLOYMENTS, "web", change, "default")
        status = await lab.status_of(DEPLOYMENTS, "web", updatedReplicas=2, availableReplicas=3, replicas=5)
        assert status["unavailableReplicas"] == 2
        change = {"spec": {"template": template(LABELS, image="two")}}
        await lab.api.patch(DEPLOYMENTS, "web", change, "default")
        await lab.status_of(DEPLOYMENTS, "web", updatedReplicas=4, availableReplicas=4, replicas=4)
        assert await revisions(lab) == {1: 0, 2: 0, 3: 4}
        await lab.api.patch(DEPLOYMENTS, "web", {"spec": {"template": template(LABELS)}}, "default")
        await lab.status_of(
            DEPLOYMENTS, "web", observedGeneration=4, updatedReplicas=4, availableReplicas=4, replicas=4
        )
        assert await revisions(lab) == {2: 0, 3: 0, 4: 4}

    lab(story)


def test_old_replica_sets_beyond_the_limit_are_deleted(lab: Any, template: Any) -> None:
    """Only revisionHistoryLimit old ones stay."""

    async def story(lab: Any) -> None:
        await deployed(lab, template, revisionHistoryLimit=1)
        for generation, image in enumerate(("two", "three"), start=2):
            change = {"spec": {"template": template(LABELS, image=image)}}
            await lab.api.patch(DEPLOYMENTS, "web", change, "default")
            await lab.status_of(
                DEPLOYMENTS, "web", observedGeneration=generation, updatedReplicas=3, replicas=3, availableReplicas=3
            )

        async def pruned() -> Any:
            return await revisions(lab) == {2: 0, 3: 3}

        await lab.until(pruned)

    lab(story)
