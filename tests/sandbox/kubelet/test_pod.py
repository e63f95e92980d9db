"""The life of pods that are nothing special."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_provision.sandbox.api import LEASES, NODES, PODS, ApiError, ApiResource

Simulate = Callable[..., None]
Object = dict[str, Any]


def pod(name: str = "plain", *, namespace: str = "default", **spec: Any) -> Object:
    """Return a pod on the GPU node; ``main`` and ``init`` are shell scripts."""
    script, init = spec.pop("main", "sleep infinity"), spec.pop("init", None)
    container = {"name": "main", "image": "registry.example/busybox:1", "command": ["sh", "-c", script]}
    inits = [{**container, "name": "init", "command": ["sh", "-c", init]}] if init else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{**container, **spec.pop("container", {})}],
            **({"initContainers": inits} if inits else {}),
            **spec,
        },
    }


async def live(lab: Any, name: str = "plain") -> Object:
    """Return a pod as the cluster has it."""
    got: Object = await lab.api.get(PODS, name, "default")
    return got


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


def test_a_pod_runs_and_its_steps_are_told(simulate: Simulate) -> None:
    """Events for pulling, creating and starting; addresses, start time, image and container IDs in the status."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(init="echo first", main="echo second; sleep infinity"))
        ready = await lab.ready("plain", "default")
        for reason in ("Pulling", "Pulled", "Created", "Started"):
            await lab.event(reason, namespace="default")
        status = ready["status"]
        assert status["phase"] == "Running"
        assert status["hostIP"] == lab.machine.address
        assert status["podIP"].startswith("10.244.")
        assert status["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
        assert status["containerStatuses"][0]["containerID"].startswith("containerd://")
        assert "@sha256:" in status["containerStatuses"][0]["imageID"]
        assert [lab.output(ready, name) for name in ("init", "main")] == ["first\n", "second\n"]

    simulate(scenario)


@pytest.mark.parametrize(
    ("script", "policy", "phase", "code"),
    [("echo done", "Never", "Succeeded", 0), ("exit 3", "Never", "Failed", 3), ("true", "OnFailure", "Succeeded", 0)],
)
def test_a_pod_ends_with_its_program(simulate: Simulate, script: str, policy: str, phase: str, code: int) -> None:
    """The exit code decides."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(main=script, restartPolicy=policy))
        ended = await lab.ended("plain", "default")
        terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["status"]["phase"], terminated["exitCode"]) == (phase, code)

    simulate(scenario)


def test_a_crashing_container_backs_off(simulate: Simulate) -> None:
    """Restarts are counted, CrashLoopBackOff and its event appear, the last state tells why."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(main="echo boom; exit 2"))
        crashing = await lab.waiting("plain", "CrashLoopBackOff", "default")
        status = crashing["status"]["containerStatuses"][0]
        assert status["restartCount"] >= 1
        assert status["lastState"]["terminated"]["exitCode"] == 2
        assert crashing["status"]["phase"] == "Running"
        await lab.event("BackOff", "Back-off restarting failed container main", "default")
        assert lab.logs.lines("default", "plain", "main", previous=True)[0][1] == "boom"

    simulate(scenario)


def test_a_failing_init_container_keeps_the_others_waiting(simulate: Simulate) -> None:
    """With restartPolicy Never the pod fails; else it is tried again."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(init="exit 1"), pod("once", init="exit 1", restartPolicy="Never"))
        waiting = await lab.waiting("plain", "CrashLoopBackOff", "default")
        assert waiting["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
        assert (await lab.ended("once", "default"))["status"]["phase"] == "Failed"

    simulate(scenario)


def test_a_deleted_pod_goes_after_its_grace(simulate: Simulate) -> None:
    """The kubelet runs the hook, reports the end, and removes the pod."""

    async def scenario(lab: Any) -> None:
        hook = {"lifecycle": {"preStop": {"exec": {"command": ["rm", "-f", "/host/flag"]}}}}
        mounts = {"volumeMounts": [{"name": "h", "mountPath": "/host"}]}
        spec = {"volumes": [{"name": "h", "hostPath": {"path": "/run/flags"}}], "container": {**hook, **mounts}}
        await lab.create(pod(main="touch /host/flag; sleep infinity", **spec))
        await lab.ready("plain", "default")
        assert "/run/flags/flag" in lab.machine.state.files
        await lab.api.delete(PODS, "plain", "default")

        async def gone() -> bool:
            return not await lab.pods("plain", "default")

        await lab.until(gone)
        assert "/run/flags/flag" not in lab.machine.state.files
        await lab.event("Killing", "Stopping container main", "default")

    simulate(scenario)


def test_a_deadline_ends_a_pod(simulate: Simulate) -> None:
    """activeDeadlineSeconds, as the fleet lives time."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(activeDeadlineSeconds=2))
        ended = await lab.ended("plain", "default")
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "DeadlineExceeded")

    simulate(scenario)


def test_a_missing_environment_reference_is_a_config_error(simulate: Simulate) -> None:
    """The container waits with CreateContainerConfigError until the ConfigMap exists."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod(container={"envFrom": [{"configMapRef": {"name": "late"}}]}))
        await lab.waiting("plain", "CreateContainerConfigError", "default")
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}}
        await lab.create(config)
        await lab.ready("plain", "default")

    simulate(scenario)


def test_conditions_that_somebody_else_changed_are_corrected(simulate: Simulate) -> None:
    """A pod that was marked as not ready, while its node was late, is ready again."""

    async def scenario(lab: Any) -> None:
        await lab.create(pod())
        ready = await lab.ready("plain", "default")
        conditions = [{**c, "status": "False"} if c["type"] == "Ready" else c for c in ready["status"]["conditions"]]
        await lab.api.patch(PODS, "plain", {"status": {"conditions": conditions}}, "default", "status")
        await lab.ready("plain", "default")

    simulate(scenario)


def test_a_job_that_asks_for_gpus_runs_where_they_are(simulate: Simulate) -> None:
    """End to end with the scheduler and the Job controller: it waits for the resource, then completes."""

    async def scenario(lab: Any) -> None:
        container = {
            "name": "main",
            "image": "registry.example/cuda-sample:vectoradd-cuda12.5.0",
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
        template = {
            "metadata": {"labels": {"app": "job"}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        metadata = {"name": "vectoradd", "namespace": "default"}
        await lab.create(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
        )
        await lab.event("FailedScheduling", "Insufficient nvidia.com/gpu", "default")
        await lab.stack()

        async def complete() -> bool:
            job = await lab.api.get(ApiResource("batch", "v1", "jobs"), "vectoradd", "default")
            return any(c["type"] == "Complete" for c in job.get("status", {}).get("conditions", ()))

        await lab.until(complete)

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
