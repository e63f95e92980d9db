"""Mistakes in manifests show on a simulated machine as they would on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import data_file
from tests.sandbox.kubelet.conftest import NodeLab, fleet, stack
from tests.sandbox.lab import Simulate

MISTAKES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
TOOLKIT, DRIVER = "nvidia-container-toolkit-daemonset", "nvidia-driver-daemonset"
Object = dict[str, Any]


def spoiled(operand: str, mistake: Object) -> list[Object]:
    manifests = stack()
    found = next(m for m in manifests if m["metadata"]["name"] == operand and "template" in m.get("spec", {}))
    spec = found["spec"]["template"]["spec"]
    container = spec["containers"][0]
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = [mount for mount in mounts if mount["name"] != mistake.get("unmount")]
    if "propagation" in mistake:
        container["volumeMounts"][0]["mountPropagation"] = mistake["propagation"]
    for volume in spec["volumes"]:
        path = volume.get("hostPath", {}).get("path")
        if path in mistake.get("volume", {}):
            volume["hostPath"]["path"] = mistake["volume"][path]
    container.update(mistake.get("set", {}))
    container.setdefault("env", []).extend(mistake.get("env", []))
    return manifests


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["says"])
def test_a_mistake_is_logged_by_the_affected_container(simulate: Simulate, mistake: Object) -> None:
    """What cannot work does not work, and the log says what is missing."""

    async def scenario(lab: NodeLab) -> None:
        await lab.stack(*spoiled(mistake["in"], mistake))
        await lab.says(mistake.get("of", mistake["in"]), mistake["container"], mistake["says"])
        assert lab.machine.state.devices is None

    simulate(scenario, fleet(**mistake.get("machine", {})))


def test_a_startup_probe_without_its_script_never_passes(simulate: Simulate) -> None:
    """The driver runs, its pod is not ready, and an event says why."""

    async def scenario(lab: NodeLab) -> None:
        await lab.stack(*spoiled(DRIVER, {"unmount": "probe"}))
        await lab.event("Unhealthy", "cannot open /usr/local/bin/startup-probe.sh")
        assert not (await lab.pod(DRIVER))["status"]["containerStatuses"][0]["started"]

    simulate(scenario)


def test_a_missing_entrypoint_cannot_be_started(simulate: Simulate) -> None:
    """An entrypoint that the manifest forgot to mount is the container runtime's StartError."""

    async def scenario(lab: NodeLab) -> None:
        await lab.stack(*spoiled(TOOLKIT, {"unmount": "entrypoint"}))
        pod = await lab.pod(TOOLKIT, lambda pod: "CrashLoopBackOff" in str(pod["status"].get("containerStatuses")))
        ended = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert 'exec: "/bin/entrypoint.sh"' in ended["message"]

    simulate(scenario)


def test_the_runtime_class_needs_the_toolkit(simulate: Simulate) -> None:
    """Without the toolkit, the container runtime does not know the handler, which is the one of its environment."""

    async def scenario(lab: NodeLab) -> None:
        await lab.stack(*spoiled(TOOLKIT, {"env": [{"name": "CONTAINERD_RUNTIME_CLASS", "value": "gpu"}]}))
        await lab.says(TOOLKIT, "nvidia-container-toolkit-ctr", "Waiting for signal")
        event = await lab.event("FailedCreatePodSandBox")
        assert event["message"].endswith('no runtime for "nvidia" is configured')
        assert lab.machine.handlers == {"", "runc", "gpu", "nvidia-cdi", "nvidia-legacy"}

    simulate(scenario)
