"""Scheduling on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import EVENTS, PODS


def gpu_pod(template: Any, count: int = 1, **spec: Any) -> Any:
    """Return the spec of a pod that asks for GPUs."""
    container = {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}
    return template({}, container=container, **spec)["spec"]


async def unschedulable(lab: Any, name: Any) -> Any:
    """Wait until a pod is known not to fit, and return the message."""
    condition = await lab.condition(PODS, name, "PodScheduled", "False")
    assert condition["reason"] == "Unschedulable"
    return condition["message"]


def test_a_pod_without_room_waits_and_is_told_why(lab: Any, template: Any) -> None:
    """The message counts the nodes by reason; a freed GPU binds the pod."""

    async def story(lab: Any) -> None:
        await lab.node("a", gpus=1)
        await lab.node("b")
        await lab.node("c", taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}])
        await lab.node("d", unschedulable=True)
        await lab.create(PODS, "Pod", "first", spec=gpu_pod(template))

        async def bound() -> Any:
            return await lab.running()

        assert (await lab.until(bound))[0]["spec"]["nodeName"] == "a"
        await lab.create(PODS, "Pod", "second", spec=gpu_pod(template))
        message = await unschedulable(lab, "second")
        assert message == (
            "0/4 nodes are available: 1 node(s) had untolerated taint {dedicated: x}, "
            "1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
        )
        await lab.api.delete(PODS, "first", "default")
        await lab.condition(PODS, "second", "PodScheduled")

        async def told() -> Any:
            events, _ = await lab.api.list(EVENTS, "default", field_selector="involvedObject.name=second")
            return {one["reason"]: (one["type"], one["message"]) for one in events} == {
                "FailedScheduling": ("Warning", message),
                "Scheduled": ("Normal", "Successfully assigned default/second to a"),
            }

        await lab.until(told)

    lab(story)


def test_a_new_node_gets_the_waiting_pod(lab: Any, template: Any) -> None:
    """A cluster without nodes has its own message."""

    async def story(lab: Any) -> None:
        await lab.create(PODS, "Pod", "p", spec=gpu_pod(template))
        assert await unschedulable(lab, "p") == "no nodes available to schedule pods"
        await lab.node("late", gpus=1)
        await lab.condition(PODS, "p", "PodScheduled")

    lab(story)


def test_load_spreads_and_never_exceeds_a_node(lab: Any, template: Any) -> None:
    """Twelve GPUs on three nodes take twelve pods, four each."""

    async def story(lab: Any) -> None:
        for name in ("a", "b", "c"):
            await lab.node(name, gpus=4)
        for number in range(13):
            await lab.create(PODS, "Pod", f"p{number}", spec=gpu_pod(template))

        async def twelve() -> Any:
            return len(await lab.running()) == 12

        await lab.until(twelve)
        nodes = [pod["spec"]["nodeName"] for pod in await lab.running()]
        assert {name: nodes.count(name) for name in "abc"} == {"a": 4, "b": 4, "c": 4}

    lab(story)


def test_another_schedulers_pod_and_a_gated_pod_are_left_alone(lab: Any, template: Any) -> None:
    """Both stay unbound; the gated one runs once its gate is gone."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(PODS, "Pod", "other", spec=template({}, schedulerName="mine")["spec"])
        await lab.create(PODS, "Pod", "gated", spec=template({}, schedulingGates=[{"name": "g"}])["spec"])
        await lab.create(PODS, "Pod", "plain", spec=template({})["spec"])
        await lab.condition(PODS, "plain", "PodScheduled")
        for name in ("other", "gated"):
            assert "nodeName" not in (await lab.api.get(PODS, name, "default"))["spec"]
        await lab.api.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, "default")
        await lab.condition(PODS, "gated", "PodScheduled")

    lab(story)
