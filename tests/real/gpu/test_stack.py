"""The whole stack on a GPU: real driver, device nodes and CUDA in the pods of a real kubelet.

Stand-ins: the programs of NVIDIA's images other than vectorAdd. They ask the driver's library which GPUs there are.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
import yaml

from gpu_provision.inventory.hardware import find_model
from gpu_provision.sandbox.operand_rules import VECTOR_ADD_LINES, cuda_version
from tests.answers import Answer
from tests.real.gpu import host
from tests.real.node.settings import NODE
from tests.real.node.user import VALIDATOR, NodeUser, init_container

pytestmark = pytest.mark.gpu

MPS = "nvidia-device-plugin-mps-control-daemon"
_MPS_LOG = "/run/nvidia/mps/nvidia.com/gpu/log/control.log"
_CUDA_FAILED = "Failed to allocate device vector A (error code "


def labels(node: NodeUser) -> dict[str, str]:
    found = node.json("node", NODE)["metadata"]["labels"]
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}


def written(node: NodeUser) -> list[str]:
    """Return what was written but for the pods through which hosts are read."""
    return [event["requestURI"] for event in node.writes() if "/namespaces/kube-system/" not in event["requestURI"]]


def choose(node: NodeUser, config: str) -> Answer:
    """Share the GPU by another configuration."""
    pool = yaml.safe_load(node.inventory.read_text())["pools"]["own"]
    node.settings(pools={"own": {**pool, "device_plugin": {"config": config}}})
    return node.apply(check=True)


def test_preflight_finds_gpus_and_driver(node: NodeUser) -> None:
    answer = node.cli("preflight", "--json", "-i", str(node.inventory))
    assert answer.code == 0, answer.text
    assert f'"gpus": {len(host.asked("index"))}' in answer.out
    plan = node.cli("plan", "-i", str(node.inventory)).text
    assert f"host driver {host.asked('driver_version')[0][0]} on {NODE}" in plan


def test_every_component_gets_ready(node: NodeUser, first_run: Answer) -> None:
    status = json.loads(node.cli("status", "--json", "-i", str(node.inventory), check=True).out)
    assert status["components"], first_run.text
    assert [row for row in status["components"] if row["state"] != "ready"] == []
    assert node.allocatable() == str(len(host.asked("index")))
    assert "NVIDIA_DRIVER_ROOT=/\n" in node.machine.run("cat", "/run/nvidia/validations/driver-ready")


@pytest.mark.usefixtures("first_run")
def test_vectors_are_added_on_the_gpu(node: NodeUser) -> None:
    """In the validator, whose message the run reads, and in a user's pod with one GPU; without one CUDA refuses."""
    ended = init_container(node.pod("nvidia-operator-validator"), "cuda-validation")
    ((name, version),) = {tuple(row) for row in host.asked("name", "driver_version")}
    lines = ended["message"].splitlines()
    assert f"driver {version}" in lines
    assert any(line.startswith(f"Device 0: {name},") for line in lines), lines
    assert [line for line in lines if line in VECTOR_ADD_LINES] == list(VECTOR_ADD_LINES)
    asking = node.finished_pod("asking", VALIDATOR, "vectorAdd && nvidia-smi -L", gpus=1)
    assert asking["status"]["phase"] == "Succeeded", node.log(asking)
    assert f"Device 0: {name}," in node.log(asking)
    assert sum(f"(UUID: {uuid})" in node.log(asking) for (uuid,) in host.asked("uuid")) == 1
    silent = node.finished_pod("silent", VALIDATOR, "vectorAdd", gpus=0)
    assert silent["status"]["phase"] == "Failed", node.log(silent)
    assert _CUDA_FAILED in node.log(silent)


@pytest.mark.usefixtures("first_run")
def test_labels_are_those_of_the_inventorys_model(node: NodeUser) -> None:
    found, gpus = labels(node), host.asked("name", "memory.total", "compute_cap", "driver_version")
    name, memory, compute, version = gpus[0]
    declared = yaml.safe_load(node.inventory.read_text())["pools"]["own"]["gpu"]["model"]
    assert find_model(found["gpu.product"]) == find_model(declared)
    assert found["gpu.product"] == name.replace(" ", "-")
    assert (found["gpu.count"], found["gpu.memory"]) == (str(len(gpus)), memory)
    assert f"{found['gpu.compute.major']}.{found['gpu.compute.minor']}" == compute
    assert found["cuda.driver-version.full"] == version
    assert found["cuda.runtime-version.full"] == cuda_version(version)


@pytest.mark.usefixtures("first_run")
def test_acceptance_tests_pass(node: NodeUser) -> None:
    answer = node.cli("verify", "--json", "-i", str(node.inventory))
    outcomes = {check["outcome"] for check in json.loads(answer.out)["checks"]}
    assert (answer.code, outcomes - {"skipped"}) == (0, {"passed"}), answer.text


@pytest.mark.usefixtures("first_run")
def test_the_second_run_writes_nothing(node: NodeUser) -> None:
    before = len(written(node))
    node.apply(check=True)
    assert written(node)[before:] == []


@pytest.mark.usefixtures("first_run")
def test_two_pods_share_a_gpu_by_time(node: NodeUser) -> None:
    choose(node, "twice")
    assert node.allocatable() == str(2 * len(host.asked("index")))
    assert labels(node)["gpu.product"].endswith("-SHARED")
    names = ("sliced-1", "sliced-2")
    for name in names:
        node.start_pod(name, VALIDATOR, "vectorAdd 6 && nvidia-smi -L", gpus=1)
    ended = [node.ended_pod(name) for name in names]
    assert [pod["status"]["phase"] for pod in ended] == ["Succeeded"] * 2, [node.log(pod) for pod in ended]
    spans = [span(pod) for pod in ended]
    assert max(start for start, _ in spans) < min(end for _, end in spans)


def span(pod: Any) -> tuple[float, float]:
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return tuple(datetime.fromisoformat(ended[key]).timestamp() for key in ("startedAt", "finishedAt"))  # type: ignore[return-value]  # two


@pytest.mark.usefixtures("first_run")
def test_without_a_device_node_the_run_says_what_cuda_says(node: NodeUser) -> None:
    """A toolkit and a plugin that leave nvidia-uvm out.

    The driver's validation does not notice, as its pod is privileged. Without the mistake the next run succeeds.
    """
    leave_out(node, {"STAND_IN_CONTROL_DEVICES": "nvidiactl"})
    failed = node.apply("--json")
    assert failed.code == 1, failed.text
    (error,) = json.loads(failed.out)["errors"]
    assert error["code"] == "GP503", error
    assert f"{_CUDA_FAILED}unknown error)!" in error["evidence"]
    assert error["where"].startswith(f"node {NODE}, pod nvidia-device-plugin-validation-")
    leave_out(node, {})
    node.apply(check=True)


def leave_out(node: NodeUser, variables: dict[str, str]) -> None:
    node.settings(toolkit={"env": variables}, device_plugin={"env": variables})


@pytest.mark.usefixtures("first_run")
def test_pods_are_clients_of_the_drivers_mps(node: NodeUser) -> None:
    choose(node, "mps")
    assert node.allocatable() == str(2 * len(host.asked("index")))
    client = node.finished_pod("client", VALIDATOR, "vectorAdd", gpus=1)
    assert client["status"]["phase"] == "Succeeded", node.log(client)
    assert "NEW CLIENT" in node.machine.run("cat", _MPS_LOG)
    assert node.log(node.pod(MPS), "mps-control-daemon-ctr").count("Starting MPS daemon") == 1
