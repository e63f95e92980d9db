"""Deployments and ReplicaSets on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import DEPLOYMENTS, PODS, REPLICA_SETS

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


def test_a_deployment_becomes_available(lab: Any, template: Any) -> None:
    """Its pods run, its conditions say so, and its revision is 1."""

    async def story(lab: Any) -> None:
        status = await deployed(lab, template)
        assert status["readyReplicas"] == status["replicas"] == 3
        assert "unavailableReplicas" not in status
        available = await lab.condition(DEPLOYMENTS, "web", "Available")
        assert available["reason"] == "MinimumReplicasAvailable"
        progressing = await lab.condition(DEPLOYMENTS, "web", "Progressing")
        assert progressing["reason"] == "NewReplicaSetAvailable"
        assert await revisions(lab) == {1: 3}
        deployment = await lab.api.get(DEPLOYMENTS, "web", "default")
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
        hashes = {pod["metadata"]["labels"]["pod-template-hash"] for pod in await lab.pods()}
        (replica_set,) = (await lab.api.list(REPLICA_SETS, "default"))[0]
        assert hashes == {replica_set["spec"]["selector"]["matchLabels"]["pod-template-hash"]}

    lab(story)


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


def test_recreate_ends_the_old_pods_before_it_starts_new_ones(lab: Any, template: Any) -> None:
    """Pods of both kinds never run together."""

    async def story(lab: Any) -> None:
        await deployed(lab, template, strategy={"type": "Recreate", "rollingUpdate": None})
        mixed = []

        def look(_change: Any, _pod: Any) -> Any:
            pods = lab.kubelet.pods.objects.values()
            mixed.append(len({pod["metadata"]["labels"]["pod-template-hash"] for pod in pods}))

        lab.kubelet.pods.on_event(look)
        change = {"spec": {"template": template(LABELS, image="two")}}
        await lab.api.patch(DEPLOYMENTS, "web", change, "default")
        await lab.status_of(DEPLOYMENTS, "web", observedGeneration=2, updatedReplicas=3, availableReplicas=3)
        assert max(mixed) == 1

    lab(story)


def test_scaling_and_deleting(lab: Any, template: Any) -> None:
    """More, fewer and none; deletion takes everything along."""

    async def story(lab: Any) -> None:
        await deployed(lab, template)
        for count in (5, 1, 0):
            await lab.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": count}}, "default")
            await lab.status_of(DEPLOYMENTS, "web", replicas=count, availableReplicas=count)
        await lab.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 2}}, "default")
        await lab.status_of(DEPLOYMENTS, "web", availableReplicas=2)
        await lab.api.delete(DEPLOYMENTS, "web", "default")

        async def empty() -> Any:
            return not await lab.pods() and not (await lab.api.list(REPLICA_SETS, "default"))[0]

        await lab.until(empty)

    lab(story)


def test_a_rollout_that_does_not_move_exceeds_its_deadline(lab: Any, template: Any) -> None:
    """Progressing turns False once progressDeadlineSeconds have passed."""

    async def story(lab: Any) -> None:
        await lab.create(DEPLOYMENTS, "Deployment", "web", spec=spec(template(LABELS), 1, progressDeadlineSeconds=1))
        progressing = await lab.condition(DEPLOYMENTS, "web", "Progressing", "False")
        assert progressing["reason"] == "ProgressDeadlineExceeded"

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


def test_a_deleted_pod_is_replaced(lab: Any, template: Any) -> None:
    """A ReplicaSet makes up for what is lost."""

    async def story(lab: Any) -> None:
        await deployed(lab, template)
        name = (await lab.pods())[0]["metadata"]["name"]
        await lab.api.delete(PODS, name, "default")
        await lab.gone(PODS, name)

        async def three() -> Any:
            return len(await lab.running()) == 3

        await lab.until(three)

    lab(story)
