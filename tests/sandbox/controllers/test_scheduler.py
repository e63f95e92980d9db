"""Scheduling on a cluster that runs."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox.controllers.fitting import NodeView
from gpu_provision.sandbox.controllers.objects import amounts
from gpu_provision.sandbox.controllers.resources import EVENTS, PODS
from gpu_provision.sandbox.controllers.scheduler import (
    NodeLoad,
    demand_of,
    explanation,
    obstacles,
    requests,
    spare,
)


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


ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "3", "nvidia.com/gpu": "2"}


def load(name: str = "a", *, taints: tuple[dict[str, str], ...] = (), **amounts: str) -> NodeLoad:
    """Return an empty node."""
    labels = {"kubernetes.io/hostname": name}
    return NodeLoad(NodeView(name, labels, taints, unschedulable=False, allocatable={**ALLOCATABLE, **amounts}))


def pod(uid: str = "p", *, labels: dict[str, str] | None = None, port: int = 0, **rest: Any) -> dict[str, Any]:
    """Return a pod whose one container requests what is given."""
    anti = rest.pop("anti", None)
    container: dict[str, Any] = {"resources": {"requests": rest.pop("requests", {})}}
    if port:
        container["ports"] = [{"hostPort": port}]
    spec: dict[str, Any] = {"containers": [container], **rest}
    if anti is not None:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": anti}}
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec["affinity"] = {"podAntiAffinity": rule}
    return {"metadata": {"name": uid, "uid": uid, "namespace": "n", "labels": labels or {}}, "spec": spec}


def why(one: dict[str, Any], node: NodeLoad) -> list[str]:
    """Return the obstacles of a pod on a node."""
    return obstacles(one["spec"], demand_of(one), node)


def filled(node: NodeLoad, *pods: dict[str, Any]) -> NodeLoad:
    """Return the node with these pods on it."""
    for one in pods:
        node.put(demand_of(one))
    return node


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"cpu": "1500m"}, {"cpu": 1500}),
        ({"cpu": "2"}, {"cpu": 2000}),
        ({"cpu": 0.5}, {"cpu": 500}),
        ({"memory": "1Gi"}, {"memory": 2**30}),
        ({"memory": "1.5k"}, {"memory": 1500}),
        ({"memory": "2e3"}, {"memory": 2000}),
        ({"memory": "1E"}, {"memory": 10**18}),
        ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 8}),
        ({"memory": "nonsense"}, {"memory": 0}),
        (None, {}),
    ],
)
def test_amounts_are_read_as_kubernetes_writes_them(written: Any, read: dict[str, int]) -> None:
    """Cores in thousandths, the rest in whole units, rounded up."""
    assert amounts(written) == read


def test_requests_are_the_larger_of_running_and_starting() -> None:
    """Init containers run one by one beside the sidecars that started before them; limits stand in."""

    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"limits": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("2")],
        "initContainers": [container("1", restartPolicy="Always"), container("5"), container("4")],
        "overhead": {"cpu": "100m"},
    }
    assert requests(spec) == {"cpu": 6100, "pods": 1}


@pytest.mark.parametrize(
    ("one", "node", "reasons"),
    [
        (pod(requests={"cpu": "4"}), load(), []),
        (pod(requests={"cpu": "4001m", "memory": "9Gi"}), load(), ["Insufficient cpu", "Insufficient memory"]),
        (
            pod(requests={"nvidia.com/gpu": "1"}),
            filled(load(), pod("x", requests={"nvidia.com/gpu": "2"})),
            ["Insufficient nvidia.com/gpu"],
        ),
        (pod(requests={"example.com/none": "1"}), load(), ["Insufficient example.com/none"]),
        (pod(), filled(load(), pod("x"), pod("y"), pod("z")), ["Too many pods"]),
        (
            pod(port=80),
            filled(load(), pod("x", port=80)),
            ["node(s) didn't have free ports for the requested pod ports"],
        ),
        (pod(port=80), filled(load(), pod("x", port=81)), []),
        (pod(nodeSelector={"x": "y"}), load(), ["node(s) didn't match Pod's node affinity/selector"]),
        (
            pod(nodeSelector={"x": "y"}),
            load(taints=({"key": "t", "value": "v", "effect": "NoSchedule"},)),
            ["node(s) had untolerated taint {t: v}"],
        ),
        (
            pod(anti={"app": "x"}),
            filled(load(), pod("x", labels={"app": "x"})),
            ["node(s) didn't match pod anti-affinity rules"],
        ),
        (
            pod(labels={"app": "y"}),
            filled(load(), pod("x", anti={"app": "y"})),
            ["node(s) didn't satisfy existing pods anti-affinity rules"],
        ),
        (pod(anti={"app": "z"}), filled(load(), pod("x", labels={"app": "x"})), []),
    ],
)
def test_why_a_pod_does_not_fit(one: dict[str, Any], node: NodeLoad, reasons: list[str]) -> None:
    """In the scheduler's words; the first check that fails speaks."""
    assert why(one, node) == reasons


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    """As the pods of DaemonSets do."""
    view = NodeView("a", {}, (), unschedulable=True, allocatable=ALLOCATABLE)
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert why(pod(), NodeLoad(view)) == ["node(s) were unschedulable"]
    assert why(pod(tolerations=[toleration]), NodeLoad(view)) == []


def test_a_pod_that_leaves_gives_everything_back() -> None:
    """And counts once however often it is put."""
    node = filled(load(), pod("x", port=80, requests={"nvidia.com/gpu": "2"}))
    filled(node, pod("x", port=80, requests={"nvidia.com/gpu": "2"}))
    node.remove("x")
    node.remove("x")
    assert why(pod(port=80, requests={"nvidia.com/gpu": "2"}), node) == []


def test_the_least_loaded_node_comes_first() -> None:
    """By cpu and memory, then by the number of pods, then by name."""
    busy, idle = filled(load("a"), pod("x", requests={"cpu": "2"})), filled(load("b"), pod("y"))
    empty, later = load("c"), load("d")
    order = sorted([busy, idle, later, empty], key=lambda node: spare(demand_of(pod()), node))
    assert [node.view.name for node in order] == ["c", "d", "b", "a"]


def test_reasons_are_counted_over_all_nodes() -> None:
    """As ``kubectl describe pod`` shows them."""
    reasons = ["Insufficient nvidia.com/gpu", "node(s) were unschedulable", "Insufficient nvidia.com/gpu"]
    wanted = "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
    assert explanation(3, reasons) == wanted
    assert explanation(0, []) == "no nodes available to schedule pods"
