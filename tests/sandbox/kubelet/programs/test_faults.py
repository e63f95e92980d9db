"""Declared faults; tests/scenarios have those of builds, images, containers and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sandbox.kubelet.conftest import fleet

Simulate = Callable[..., None]
Object = dict[str, Any]


def test_missing_gpus_are_missing_everywhere(simulate: Simulate) -> None:
    """PCI, the plugin and GFD see two of eight, and eight again afterwards."""

    async def scenario(lab: Any) -> None:
        await lab.stack()
        await lab.allocatable(8)
        await lab.faults({"fault": "gpu-missing", "count": 6})
        await lab.allocatable(2)
        await lab.until(lambda: labelled(lab, "2"))
        await lab.faults()
        await lab.allocatable(8)
        await lab.until(lambda: labelled(lab, "8"))

    simulate(scenario, fleet(model="H100", gpus=8))


async def labelled(lab: Any, count: str) -> bool:
    """Tell whether the node's label says how many GPUs it has."""
    return (await lab.node())["metadata"]["labels"].get("nvidia.com/gpu.count") == count


def test_a_silent_worker_labels_nothing(simulate: Simulate) -> None:
    """Node Feature Discovery's pods run, and the node gets no feature label."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "nfd-silent"})
        await lab.stack()
        await lab.ready("nfd-worker")
        assert not [k for k in (await lab.node())["metadata"]["labels"] if k.startswith("feature.")]
        await lab.faults()

        async def spoken() -> bool:
            return "feature.node.kubernetes.io/pci-10de.present" in (await lab.node())["metadata"]["labels"]

        await lab.until(spoken)

    simulate(scenario)


def test_a_reboot_resets_the_node_and_operands_return(simulate: Simulate) -> None:
    """Another boot ID, no modules, no files in /run; every container starts again, once."""

    async def scenario(lab: Any) -> None:
        await lab.stack()
        await lab.allocatable(1)
        await lab.ready("nvidia-operator-validator")
        boot = (await lab.node())["status"]["nodeInfo"]["bootID"]
        lab.machine.state.files["/run/left-over"] = "x"
        await lab.faults({"fault": "node-reboots", "node": "gpu-1"})

        async def rebooted() -> bool:
            return (await lab.node())["status"]["nodeInfo"]["bootID"] != boot

        await lab.until(rebooted)
        await lab.allocatable(1)
        await lab.ready("nvidia-operator-validator")
        driver = await lab.ready("nvidia-driver-daemonset")
        assert driver["status"]["containerStatuses"][0]["restartCount"] == 1
        assert driver["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 255
        assert "/run/left-over" not in lab.machine.state.files
        again = (await lab.node())["status"]["nodeInfo"]["bootID"]
        await lab.faults({"fault": "node-reboots", "node": "gpu-1"}, {"fault": "vectoradd-fails", "node": "other"})
        assert (await lab.node())["status"]["nodeInfo"]["bootID"] == again

    simulate(scenario)


def test_an_unknown_fault_is_an_event_of_its_config_map(simulate: Simulate) -> None:
    """The other faults of the list are in force."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "nod-not-ready"}, {"fault": "node-not-ready"})
        event = await lab.event("InvalidFault", "write node-not-ready", "kube-system")
        assert event["involvedObject"]["kind"] == "ConfigMap"

        async def unready() -> bool:
            conditions = (await lab.node())["status"]["conditions"]
            return any(one["type"] == "Ready" and one["status"] == "False" for one in conditions)

        await lab.until(unready)

    simulate(scenario)
