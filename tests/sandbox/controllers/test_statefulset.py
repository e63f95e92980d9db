"""StatefulSets on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import PODS, STATEFUL_SETS

LABELS = {"app": "db"}


def spec(template: Any, replicas: int = 3, **more: Any) -> dict[str, Any]:
    """Return a StatefulSet's spec."""
    selector = {"matchLabels": LABELS}
    return {"replicas": replicas, "serviceName": "db", "selector": selector, "template": template, **more}


async def names(lab: Any) -> list[str]:
    """Return the names of the pods."""
    return [pod["metadata"]["name"] for pod in await lab.pods()]


def test_pods_come_in_order_and_go_in_reverse(lab: Any, template: Any) -> None:
    """Each waits for the one before it; scaling down takes the last first."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        order: list[tuple[str, str]] = []
        lab.kubelet.pods.on_event(lambda change, pod: order.append((change, pod["metadata"]["name"])))
        await lab.create(STATEFUL_SETS, "StatefulSet", "db", spec=spec(template(LABELS)))
        status = await lab.status_of(STATEFUL_SETS, "db", readyReplicas=3, updatedReplicas=3)
        assert status["currentRevision"] == status["updateRevision"]
        assert [name for change, name in order if change == "ADDED"] == ["db-0", "db-1", "db-2"]
        await lab.api.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}}, "default")
        await lab.status_of(STATEFUL_SETS, "db", replicas=1)
        assert [name for change, name in order if change == "DELETED"] == ["db-2", "db-1"]

    lab(story)


def test_an_unready_pod_holds_back_the_next(lab: Any, template: Any) -> None:
    """Unless the pods are managed in parallel."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        lab.kubelet.broken_images.add("bad")
        await lab.create(STATEFUL_SETS, "StatefulSet", "db", spec=spec(template(LABELS, image="bad")))
        await lab.status_of(STATEFUL_SETS, "db", replicas=1, readyReplicas=0)
        assert await names(lab) == ["db-0"]
        parallel = spec(template({"app": "p"}, image="bad"), podManagementPolicy="Parallel")
        parallel["selector"] = {"matchLabels": {"app": "p"}}
        await lab.create(STATEFUL_SETS, "StatefulSet", "p", spec=parallel)
        await lab.status_of(STATEFUL_SETS, "p", replicas=3, readyReplicas=0)

    lab(story)


def test_an_update_goes_from_the_last_pod_to_the_partition(lab: Any, template: Any) -> None:
    """Pods below the partition keep the old revision, also when they are made anew."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(STATEFUL_SETS, "StatefulSet", "db", spec=spec(template(LABELS)))
        await lab.status_of(STATEFUL_SETS, "db", readyReplicas=3, updatedReplicas=3)
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
        change = {"spec": {"template": template(LABELS, image="two"), "updateStrategy": strategy}}
        await lab.api.patch(STATEFUL_SETS, "db", change, "default")
        await lab.status_of(STATEFUL_SETS, "db", readyReplicas=3, updatedReplicas=2, currentReplicas=1)
        before = await lab.api.get(PODS, "db-0", "default")
        await lab.api.delete(PODS, "db-0", "default")

        async def made_anew() -> bool:
            after = await lab.api.get(PODS, "db-0", "default")
            return after["metadata"]["uid"] != before["metadata"]["uid"]

        await lab.until(made_anew)
        await lab.status_of(STATEFUL_SETS, "db", readyReplicas=3, updatedReplicas=2)
        images = [pod["spec"]["containers"][0]["image"] for pod in await lab.pods()]
        assert images == ["one", "two", "two"]
        await lab.api.patch(
            STATEFUL_SETS, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}, "default"
        )
        status = await lab.status_of(STATEFUL_SETS, "db", readyReplicas=3, updatedReplicas=3, currentReplicas=3)
        assert status["currentRevision"] == status["updateRevision"]

    lab(story)
