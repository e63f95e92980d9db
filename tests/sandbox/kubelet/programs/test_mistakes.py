"""Mistakes in manifests show on a simulated machine as they would on a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sandbox.kubelet.conftest import fleet, stack

Simulate = Callable[..., None]
Object = dict[str, Any]
TOOLKIT, PLUGIN, DRIVER = (
    "nvidia-container-toolkit-daemonset",
    "nvidia-device-plugin-daemonset",
    "nvidia-driver-daemonset",
)


def pod_of(manifests: list[Object], name: str) -> Object:
    """Return the pod specification of an operand."""
    found = next(m for m in manifests if m["metadata"]["name"] == name and "template" in m.get("spec", {}))
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def unmount(container: Object, volume: str) -> None:
    """Take a mount out of a container."""
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != volume]


def container_of(manifests: list[Object], name: str) -> Object:
    """Return the first container of an operand."""
    found: Object = pod_of(manifests, name)["containers"][0]
    return found


def tell_of_k3s(manifests: list[Object]) -> None:
    """The toolkit learns where k3s keeps its configuration, and nothing of its socket."""
    volumes = pod_of(manifests, TOOLKIT)["volumes"]
    config = next(volume for volume in volumes if volume.get("hostPath", {}).get("path") == "/etc/containerd")
    config["hostPath"]["path"] = "/var/lib/rancher/k3s/agent/etc/containerd"


TOOLKIT_CONTAINER, DRIVER_CONTAINER = "nvidia-container-toolkit-ctr", "nvidia-driver-ctr"
IMAGE = "registry.example/nvidia/driver"
K3S = {"kubelet": "v1.31.4+k3s1"}
# what spoils the manifests or the machine; the container that suffers; what it says
MISTAKES: tuple[tuple[Callable[[list[Object]], object], Object, str, str, str], ...] = (
    (
        lambda them: unmount(container_of(them, TOOLKIT), "run-nvidia-validations"), {},
        TOOLKIT, TOOLKIT_CONTAINER, "waiting for /run/nvidia/validations/driver-ready",
    ),
    (
        lambda them: container_of(them, DRIVER)["volumeMounts"][0].pop("mountPropagation"), {},
        TOOLKIT, "driver-validation", "waiting for /run/nvidia/driver/usr/bin/nvidia-smi",
    ),
    (
        lambda them: unmount(container_of(them, PLUGIN), "device-plugin"), {},
        PLUGIN, "nvidia-device-plugin", "device-plugins/nvidia-gpu.sock: no such file",
    ),
    (
        lambda them: container_of(them, DRIVER).update(image=f"{IMAGE}:580.95.05-ubuntu24.04"), {},
        DRIVER, DRIVER_CONTAINER, "the image is for ubuntu24.04, the host runs ubuntu22.04",
    ),
    (
        lambda them: container_of(them, DRIVER).update(image=f"{IMAGE}:390.157-ubuntu22.04"), {},
        DRIVER, DRIVER_CONTAINER, "Tesla T4 needs driver branch 410 or later",
    ),
    (
        lambda them: container_of(them, DRIVER).pop("securityContext"), {},
        DRIVER, DRIVER_CONTAINER, "Operation not permitted",
    ),
    (
        lambda them: unmount(container_of(them, TOOLKIT), "drop-in"), {},
        TOOLKIT, TOOLKIT_CONTAINER, "is not one that the container runtime reads",
    ),
    (lambda them: container_of(them, "nfd-worker").update(env=[]), {}, "nfd-worker", "worker", "NODE_NAME is not set"),
    (lambda _: None, {"host": {"nouveau": True}}, DRIVER, DRIVER_CONTAINER, "nouveau"),
    (lambda _: None, K3S, TOOLKIT, TOOLKIT_CONTAINER, "/etc/containerd/config.toml is not one that k3s reads"),
    (tell_of_k3s, K3S, TOOLKIT, TOOLKIT_CONTAINER, "k3s does not listen on /run/containerd/containerd.sock"),
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[-1])
def test_a_mistake_is_logged_by_the_affected_container(simulate: Simulate, mistake: Any) -> None:
    """What cannot work does not work, and the log says what is missing."""
    spoil, machine, app, container, said = mistake

    async def scenario(lab: Any) -> None:
        manifests = stack()
        spoil(manifests)
        await lab.stack(*manifests)
        await lab.says(app, container, said)
        assert lab.machine.state.devices is None

    simulate(scenario, fleet(**machine))


def test_a_startup_probe_without_its_script_never_passes(simulate: Simulate) -> None:
    """The driver runs, its pod is not ready, and an event says why."""

    async def scenario(lab: Any) -> None:
        manifests = stack()
        unmount(pod_of(manifests, DRIVER)["containers"][0], "probe")
        await lab.stack(*manifests)
        await lab.event("Unhealthy", "cannot open /usr/local/bin/startup-probe.sh")
        assert not (await lab.pod(DRIVER))["status"]["containerStatuses"][0]["started"]

    simulate(scenario)


def test_a_missing_entrypoint_cannot_be_started(simulate: Simulate) -> None:
    """An entrypoint that the manifest forgot to mount is the container runtime's StartError."""

    async def scenario(lab: Any) -> None:
        manifests = stack()
        unmount(pod_of(manifests, TOOLKIT)["containers"][0], "entrypoint")
        await lab.stack(*manifests)
        pod = await lab.waiting(TOOLKIT, "CrashLoopBackOff")
        ended = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert 'exec: "/bin/entrypoint.sh"' in ended["message"]

    simulate(scenario)


def test_the_runtime_class_needs_the_toolkit(simulate: Simulate) -> None:
    """Without the toolkit, the container runtime does not know the handler."""

    async def scenario(lab: Any) -> None:
        await lab.stack()
        event = await lab.event("FailedCreatePodSandBox")
        assert event["message"].endswith('no runtime for "nvidia" is configured')
        await lab.ready(PLUGIN)

    simulate(scenario)


def test_the_toolkit_names_the_handler_of_the_runtime_class(simulate: Simulate) -> None:
    """As its environment says; no other class but those of CDI has one."""

    async def scenario(lab: Any) -> None:
        manifests = stack()
        (container,) = pod_of(manifests, TOOLKIT)["containers"]
        container["env"].append({"name": "CONTAINERD_RUNTIME_CLASS", "value": "gpu"})
        await lab.stack(*manifests)
        await lab.says(TOOLKIT, "nvidia-container-toolkit-ctr", "Waiting for signal")
        assert lab.machine.handlers == {"", "runc", "gpu", "nvidia-cdi", "nvidia-legacy"}

    simulate(scenario)
