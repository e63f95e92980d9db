"""Nodes that register again, and pods whose status another client writes; tests/contract has the lives of pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_provision.sandbox.api import LEASES, NODES, PODS, ApiError

Simulate = Callable[..., None]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "plain", "namespace": "default", "labels": {"app": "plain"}},
    "spec": {
        "nodeName": "gpu-1",
        "containers": [{"name": "main", "image": "registry.example/busybox:1", "command": ["sleep", "infinity"]}],
    },
}


def test_nodes_register_as_kubelets_do(simulate: Simulate) -> None:
    """Labels, nodeInfo, addresses, conditions, and a lease."""

    async def scenario(lab: Any) -> None:
        node = await lab.node()
        info = node["status"]["nodeInfo"]
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-1"
        assert (info["osImage"], info["containerRuntimeVersion"]) == ("Ubuntu 22.04.5 LTS", "containerd://1.7.27")
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]} == {
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
            "Ready": "True",
        }
        assert "nvidia.com/gpu" not in node["status"]["capacity"]
        assert (await lab.api.get(LEASES, "gpu-1", "kube-node-lease"))["spec"]["holderIdentity"] == "gpu-1"

    simulate(scenario)


def test_conditions_that_another_client_changed_are_corrected(simulate: Simulate) -> None:
    """A pod that was marked as not ready, while its node was late, is ready again."""

    async def scenario(lab: Any) -> None:
        await lab.create(POD)
        ready = await lab.ready("plain", "default")
        conditions = [{**c, "status": "False"} if c["type"] == "Ready" else c for c in ready["status"]["conditions"]]
        await lab.api.patch(PODS, "plain", {"status": {"conditions": conditions}}, "default", "status")
        await lab.ready("plain", "default")

    simulate(scenario)


def test_a_node_that_is_deleted_comes_back_with_the_sandbox(simulate: Simulate) -> None:
    """A kubelet registers when it starts."""

    async def first(lab: Any) -> None:
        await lab.api.delete(NODES, "gpu-1")
        with pytest.raises(ApiError):
            await lab.node()

    async def second(lab: Any) -> None:
        assert (await lab.node())["metadata"]["name"] == "gpu-1"

    simulate(first)
    simulate(second)


def test_a_reregistered_node_gets_its_status_and_a_lease(simulate: Simulate) -> None:
    """The kubelet of a machine that runs writes over a status that another client brought along."""

    async def scenario(lab: Any) -> None:
        node = await lab.node()
        conditions = [{**each, "status": "False"} for each in node["status"]["conditions"]]
        await lab.api.delete(NODES, "gpu-1")
        again = {"metadata": {"name": "gpu-1"}, "status": {**node["status"], "conditions": conditions}}
        made = await lab.api.create(NODES, again)

        async def renewed() -> bool:
            ready = {c["type"]: c["status"] for c in (await lab.node())["status"]["conditions"]}["Ready"] == "True"
            leases = (await lab.api.list(LEASES, "kube-node-lease"))[0]
            owners = [owner["uid"] for lease in leases for owner in lease["metadata"]["ownerReferences"]]
            return ready and owners == [made["metadata"]["uid"]]

        await lab.until(renewed)

    simulate(scenario)
