"""Nodes that register, fail and reboot, and pods whose status another client writes."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import LEASES, NODES, PODS, ApiError
from tests.sandbox.kubelet.conftest import NodeLab, fleet
from tests.sandbox.lab import Simulate

CONTAINER = {"name": "main", "image": "registry.example/busybox:1", "command": ["sleep", "infinity"]}


def test_nodes_register_as_kubelets_do(simulate: Simulate) -> None:
    """Labels, nodeInfo, conditions, a lease; one that is deleted comes back with the sandbox."""

    async def first(lab: NodeLab) -> None:
        node = await lab.node()
        info = node["status"]["nodeInfo"]
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-1"
        assert (info["osImage"], info["containerRuntimeVersion"]) == ("Ubuntu 22.04.5 LTS", "containerd://1.7.27")
        pressures = dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False")
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]} == {**pressures, "Ready": "True"}
        assert "nvidia.com/gpu" not in node["status"]["capacity"]
        assert (await lab.api.get(LEASES, "gpu-1", "kube-node-lease"))["spec"]["holderIdentity"] == "gpu-1"
        await lab.api.delete(NODES, "gpu-1")
        with pytest.raises(ApiError):
            await lab.node()

    async def second(lab: NodeLab) -> None:
        assert (await lab.node())["metadata"]["name"] == "gpu-1"

    simulate(first)
    simulate(second)


def test_status_that_another_client_changed_is_corrected(simulate: Simulate) -> None:
    """That of a pod, as when its node was late, and that of a node that another client registers, with its lease."""

    async def scenario(lab: NodeLab) -> None:
        metadata = {"name": "plain", "namespace": "default", "labels": {"app": "plain"}}
        spec = {"nodeName": "gpu-1", "containers": [CONTAINER]}
        await lab.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        ready = await lab.ready("plain", "default")
        conditions = [{**c, "status": "False"} if c["type"] == "Ready" else c for c in ready["status"]["conditions"]]
        await lab.api.patch(PODS, "plain", {"status": {"conditions": conditions}}, "default", "status")
        await lab.ready("plain", "default")
        status = (await lab.node())["status"]
        conditions = [{**each, "status": "False"} for each in status["conditions"]]
        await lab.api.delete(NODES, "gpu-1")
        again = {"metadata": {"name": "gpu-1"}, "status": {**status, "conditions": conditions}}
        made = await lab.api.create(NODES, again)

        async def renewed() -> bool:
            leases = (await lab.api.list(LEASES, "kube-node-lease"))[0]
            owners = [owner["uid"] for lease in leases for owner in objects.owners(lease)]
            return objects.has_condition(await lab.node(), "Ready") and owners == [objects.uid(made)]

        await lab.until(renewed)

    simulate(scenario)


def test_missing_gpus_are_missing_everywhere(simulate: Simulate) -> None:
    """PCI, the plugin and GFD see two of eight, and eight again afterwards."""

    async def scenario(lab: NodeLab) -> None:
        await lab.stack()
        await lab.allocatable(8)
        for faults, count in (([{"fault": "gpu-missing", "count": 6}], 2), ([], 8)):
            await lab.faults(*faults)
            await lab.allocatable(count)
            await lab.labelled(gpu_count=str(count))

    simulate(scenario, fleet(model="H100", gpus=8))


def test_a_silent_worker_labels_nothing(simulate: Simulate) -> None:
    """Until the fault ends. An unknown fault is an event of the ConfigMap, and the others of the list are in force."""

    async def scenario(lab: NodeLab) -> None:
        await lab.faults({"fault": "nod-not-ready"}, {"fault": "nfd-silent"})
        event = await lab.event("InvalidFault", "write node-not-ready", "kube-system")
        assert event["involvedObject"]["kind"] == "ConfigMap"
        await lab.stack()
        await lab.ready("nfd-worker")
        assert not [key for key in objects.labels(await lab.node()) if key.startswith("feature.")]
        await lab.faults()

        async def spoken() -> bool:
            return "feature.node.kubernetes.io/pci-10de.present" in objects.labels(await lab.node())

        await lab.until(spoken)

    simulate(scenario)


def test_a_reboot_resets_the_node_and_operands_return(simulate: Simulate) -> None:
    """Another boot ID, no modules, no files in /run; every container starts again, once for one declaration."""

    async def scenario(lab: NodeLab) -> None:
        await lab.everything()
        boot = lab.machine.state.boot_id
        lab.machine.state.files["/run/left-over"] = "x"
        await lab.faults({"fault": "node-reboots", "node": "gpu-1"})

        async def rebooted() -> bool:
            return (await lab.node())["status"]["nodeInfo"]["bootID"] not in {boot, ""}

        await lab.until(rebooted)
        await lab.allocatable(1)
        await lab.ready("nvidia-operator-validator")
        (driver,) = (await lab.ready("nvidia-driver-daemonset"))["status"]["containerStatuses"]
        assert (driver["restartCount"], driver["lastState"]["terminated"]["exitCode"]) == (1, 255)
        assert "/run/left-over" not in lab.machine.state.files
        again = lab.machine.state.boot_id
        await lab.faults({"fault": "node-reboots", "node": "gpu-1"}, {"fault": "vectoradd-fails", "node": "other"})
        assert (await lab.node())["status"]["nodeInfo"]["bootID"] == again

    simulate(scenario)
