"""Declared faults: each shows as it would on a real node, and its removal lets the next try succeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Simulate = Callable[..., None]
Object = dict[str, Any]


def test_a_driver_build_fails_until_the_fault_is_gone(simulate: Simulate) -> None:
    """The build's own error is in the log, the pod is in CrashLoopBackOff, and nothing after it starts."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "driver-build-fails", "kernel": "5.15", "message": "error: no member 'dev'"})
        await lab.stack()
        await lab.waiting("nvidia-driver-daemonset", "CrashLoopBackOff")
        said = await lab.says("nvidia-driver-daemonset", "nvidia-driver-ctr", "no member 'dev'")
        assert "failed to build for kernel 5.15.0-122-generic" in said
        await lab.says("nvidia-container-toolkit-daemonset", "driver-validation", "waiting for /run/nvidia/driver")
        await lab.event("BackOff", "Back-off restarting failed container nvidia-driver-ctr")
        await lab.faults()
        await lab.ready("nvidia-driver-daemonset")

    simulate(scenario)


def test_an_image_that_cannot_be_pulled(simulate: Simulate) -> None:
    """ErrImagePull, then ImagePullBackOff, with the registry's words; it is pulled once the fault is gone."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "image-pull-fails", "image": "k8s-device-plugin", "message": "unauthorized"})
        await lab.stack()
        pod = await lab.waiting("nvidia-device-plugin-daemonset", "ImagePullBackOff")
        waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
        assert "unauthorized" in waiting["message"]
        await lab.event("Failed", "unauthorized")
        await lab.faults()
        await lab.ready("nvidia-device-plugin-daemonset")

    simulate(scenario)


def test_missing_gpus_are_missing_everywhere(simulate: Simulate, make_fleet: Any) -> None:
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

    simulate(scenario, make_fleet(model="H100", gpus=8))


async def labelled(lab: Any, count: str) -> bool:
    """Tell whether the node's label says how many GPUs it has."""
    return (await lab.node())["metadata"]["labels"].get("nvidia.com/gpu.count") == count


def test_vectoradd_that_fails_holds_the_validator_back(simulate: Simulate) -> None:
    """The validator's init container is tried again until the sample passes."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "vectoradd-fails", "message": "CUDA error: out of memory"})
        await lab.stack()
        await lab.says("nvidia-operator-validator", "cuda-validation", "CUDA error: out of memory")
        assert "/run/nvidia/validations/cuda-ready" not in lab.machine.state.files
        await lab.faults()
        await lab.ready("nvidia-operator-validator")

    simulate(scenario)


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


async def ready_condition(lab: Any) -> str:
    """Return the status of a node's condition Ready."""
    conditions = (await lab.node())["status"]["conditions"]
    return next(str(c["status"]) for c in conditions if c["type"] == "Ready")


def test_a_node_that_is_not_ready(simulate: Simulate) -> None:
    """The node says so itself, and recovers with the fault."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "node-not-ready", "node": "gpu-1"})

        async def unready() -> bool:
            return await ready_condition(lab) == "False"

        await lab.until(unready)
        await lab.faults()

        async def ready() -> bool:
            return await ready_condition(lab) == "True"

        await lab.until(ready)

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


def test_a_running_container_can_be_made_to_crash(simulate: Simulate) -> None:
    """``crash-loop`` strikes what runs already; without the fault the container comes back."""

    async def scenario(lab: Any) -> None:
        await lab.stack()
        await lab.ready("nvidia-dcgm-exporter")
        await lab.faults({"fault": "crash-loop", "image": "dcgm-exporter", "exit_code": 139})
        pod = await lab.waiting("nvidia-dcgm-exporter", "CrashLoopBackOff")
        assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 139
        await lab.faults()
        await lab.ready("nvidia-dcgm-exporter")

    simulate(scenario)


def test_a_fault_that_nobody_knows_is_told_where_it_was_declared(simulate: Simulate) -> None:
    """As an event of the ConfigMap; the other faults of the list are in force."""

    async def scenario(lab: Any) -> None:
        await lab.faults({"fault": "nod-not-ready"}, {"fault": "node-not-ready"})
        event = await lab.event("InvalidFault", "write node-not-ready", "kube-system")
        assert event["involvedObject"]["kind"] == "ConfigMap"

        async def unready() -> bool:
            return await ready_condition(lab) == "False"

        await lab.until(unready)

    simulate(scenario)
