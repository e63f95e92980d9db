"""The operands on a simulated machine, from an empty node to a validated GPU, and what undoes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.api import PODS
from tests.sandbox.kubelet.conftest import NodeLab
from tests.sandbox.lab import Simulate

Object = dict[str, Any]
VALIDATIONS = "/run/nvidia/validations"
OPERANDS = (
    "nvidia-driver-daemonset",
    "nvidia-container-toolkit-daemonset",
    "nvidia-operator-validator",
    "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery",
    "nvidia-dcgm-exporter",
)


def workload(**spec: Any) -> Object:
    container = {
        "name": "main",
        "image": "registry.example/cuda-sample:vectoradd-cuda12.5.0",
        **spec.pop("container", {}),
    }
    metadata = {"name": "workload", "namespace": "gpu", "labels": {"app": "workload"}}
    spec = {"restartPolicy": "Never", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
NO_DEVICE = "Failed to allocate device vector A (error code no CUDA-capable device is detected)!"
ONE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


@pytest.mark.parametrize(
    ("pod", "passes"),
    [
        (workload(container=ONE_GPU), True),
        (workload(runtimeClassName="nvidia"), True),
        (workload(), False),
        (workload(runtimeClassName="nvidia", container={"env": [VOID]}), False),
    ],
    ids=["granted", "runtime class", "no access", "void"],
)
def test_vectoradd_passes_only_with_access_to_a_gpu(simulate: Simulate, pod: Object, passes: bool) -> None:  # noqa: FBT001
    """Access is a granted device, or the nvidia runtime with visible devices; the sample's own lines tell."""

    async def scenario(lab: NodeLab) -> None:
        await lab.everything()
        await lab.create(pod)
        ended = await lab.ended("workload")
        lines = lab.output(ended, "main").splitlines()
        assert (lines[0], lines[-1]) == ("[Vector addition of 50000 elements]", "Done" if passes else NO_DEVICE)
        assert ("Test PASSED" in lines, ended["status"]["phase"]) == (passes, "Succeeded" if passes else "Failed")

    simulate(scenario)


def test_what_holds_a_gpu_and_what_undoes_it(simulate: Simulate) -> None:
    """A pinned pod that asks for a GPU that another pod holds is refused by the kubelet, as a real one does.

    When the device plugin's pod goes, allocatable falls to 0 and capacity stays; the validator's preStop hook removes
    what its command names, and nothing else.
    """

    async def scenario(lab: NodeLab) -> None:
        await lab.everything()
        holder = workload(container={**ONE_GPU, "image": "registry.example/cuda:13", "command": ["sleep", "infinity"]})
        holder["metadata"] |= {"name": "holder", "labels": {"app": "holder"}}
        await lab.create(holder)
        await lab.ready("holder")
        await lab.create(workload(nodeName="gpu-1", container=ONE_GPU))
        refused = await lab.ended("workload")
        assert refused["status"]["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 1, Available: 0" in refused["status"]["message"]
        await lab.label(**{"device-plugin": "false", "operator-validator": "false"})
        await lab.allocatable(0)
        assert (await lab.node())["status"]["capacity"]["nvidia.com/gpu"] == "1"

        async def only_the_drivers() -> bool:
            left = [path for path in lab.machine.state.files if VALIDATIONS in path]
            return left == [f"{VALIDATIONS}/.driver-ctr-ready"]

        await lab.until(only_the_drivers)

    simulate(scenario)


def test_a_restart_of_the_sandbox_changes_nothing(simulate: Simulate) -> None:
    """Machines keep their driver, files and boot ID; no container restarts, and no label changes."""
    before: dict[str, Any] = {}

    async def first(lab: NodeLab) -> None:
        await lab.everything()
        await lab.labelled(gpu_count=None)  # they come a moment after the pod that finds them is ready
        before["pods"] = {p["metadata"]["name"]: p["status"] for p in (await lab.api.list(PODS, "gpu"))[0]}
        before["node"] = await lab.node()

    async def second(lab: NodeLab) -> None:
        await lab.allocatable(1)
        node = await lab.node()
        assert {p["metadata"]["name"]: p["status"] for p in (await lab.api.list(PODS, "gpu"))[0]} == before["pods"]
        assert node["status"]["nodeInfo"] == before["node"]["status"]["nodeInfo"]
        assert node["metadata"]["labels"] == before["node"]["metadata"]["labels"]

    simulate(first)
    simulate(second)


def test_pods_on_a_machine_that_forgot_everything_start_again(simulate: Simulate, tmp_path: Path) -> None:
    """They claim a driver that is not loaded any more: as after a reboot, each container runs again, in its order."""

    async def first(lab: NodeLab) -> None:
        await lab.everything()

    async def second(lab: NodeLab) -> None:
        for app in OPERANDS:
            await lab.pod(app, restarted)
            await lab.ready(app)
        await lab.allocatable(1)
        await lab.create(workload(container=ONE_GPU))
        assert (await lab.ended("workload"))["status"]["phase"] == "Succeeded"

    def restarted(pod: Object) -> bool:
        return bool(pod["status"]["containerStatuses"][0]["restartCount"])

    simulate(first)
    shutil.rmtree(tmp_path / "machines")
    simulate(second)
