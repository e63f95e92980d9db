"""The main job on a real node, step by step."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest

from tests.answers import Answer
from tests.real.node.nodes import GPUS
from tests.real.node.settings import NODE
from tests.real.node.user import NFD, OPERANDS, VALIDATOR, NodeUser, init_container

pytestmark = pytest.mark.real

DRIVER = "/run/nvidia/driver"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_REQUESTS = 30


def seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def written(user: NodeUser, *files: str) -> list[float]:
    """When files on the node were written; the cluster's own times have no fractions."""
    return [float(time) for time in user.machine.run("stat", "--format=%.Y", *files).split()]


def test_every_component_is_ready(user: NodeUser, first_run: Answer) -> None:
    status = json.loads(user.cli("status", "--json", "-i", str(user.inventory), check=True).out)
    assert status["components"], first_run.text
    for row in status["components"]:
        assert row["state"] == "ready", row
        assert row["ready"] == row["desired"], row


@pytest.mark.usefixtures("first_run")
def test_the_toolkit_waited_until_the_driver_could_be_used(user: NodeUser) -> None:
    """Its init container did not end before the driver's files were there."""
    waited = init_container(user.pod("nvidia-container-toolkit-daemonset"), "driver-validation")
    (library,) = written(user, f"{DRIVER}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert seconds(waited["finishedAt"]) >= math.floor(library)


@pytest.mark.usefixtures("first_run")
@pytest.mark.parametrize("app", ["nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter"])
def test_operands_waited_until_the_toolkit_was_validated(user: NodeUser, app: str) -> None:
    waited = init_container(user.pod(app), "toolkit-validation")
    (ready,) = written(user, "/run/nvidia/validations/toolkit-ready")
    assert seconds(waited["finishedAt"]) >= math.floor(ready)


@pytest.mark.usefixtures("first_run")
def test_validations_passed_in_their_order(user: NodeUser) -> None:
    names = ("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")
    times = written(user, *(f"/run/nvidia/validations/{name}" for name in names))
    assert times == sorted(times)


@pytest.mark.usefixtures("first_run")
def test_the_drivers_mount_reaches_the_node_and_other_containers(user: NodeUser) -> None:
    """The driver container mounts its own root file system; no other container does."""
    places = [line.split()[4] for line in user.machine.run("cat", "/proc/self/mountinfo").splitlines()]
    assert DRIVER in places
    toolkit = user.pod("nvidia-container-toolkit-daemonset")["metadata"]["name"]
    listed = user.kubectl("exec", "-n", OPERANDS, toolkit, "--", "ls", "/driver-root/usr/bin")
    assert "nvidia-smi" in listed.split()


@pytest.mark.usefixtures("first_run")
def test_kubelet_has_the_gpus_from_the_plugin(user: NodeUser) -> None:
    """Kubelet's own record of what registered over its socket, and the node's status that follows from it."""
    registered = json.loads(user.machine.run("cat", CHECKPOINT))["Data"]["RegisteredDevices"]["nvidia.com/gpu"]
    assert len(registered) == GPUS
    assert user.allocatable() == str(GPUS)


@pytest.mark.usefixtures("first_run")
def test_vector_add_passed_in_the_validator(user: NodeUser) -> None:
    """The kubelet shows what it printed as the message of its end; the node's own boot is in it."""
    ended = init_container(user.pod("nvidia-operator-validator"), "cuda-validation")
    boot = user.json("node", NODE)["status"]["nodeInfo"]["bootID"]
    assert ended["message"].splitlines()[0] == f"boot {boot}"
    assert "Test PASSED" in ended["message"].splitlines()


@pytest.mark.usefixtures("first_run")
def test_vector_add_passed_with_a_gpu_that_the_scheduler_gave(user: NodeUser) -> None:
    """Its pod is gone with the run; what it printed is in the run's record."""
    assert user.json("pods", "-n", OPERANDS, "-l", "app=nvidia-device-plugin-validation")["items"] == []
    record = user.json("configmap", "-n", OPERANDS, "node-validations")["data"]
    assert "device_plugin_validation" in record[NODE]


@pytest.mark.usefixtures("first_run")
def test_a_users_pod_gets_as_many_gpus_as_it_asks_for(user: NodeUser) -> None:
    """One of two; a pod that asks for none cannot add vectors."""
    asking = user.finished_pod("asking", VALIDATOR, "vectorAdd && nvidia-smi -L", gpus=1)
    assert asking["status"]["phase"] == "Succeeded"
    assert user.log(asking).count("Tesla T4") == 1
    silent = user.finished_pod("silent", VALIDATOR, "vectorAdd", gpus=0)
    assert silent["status"]["phase"] == "Failed"
    assert "Failed to allocate device vector A" in user.log(silent)


@pytest.mark.usefixtures("first_run")
def test_the_exporter_serves_metrics_of_every_gpu(user: NodeUser) -> None:
    service = f"/api/v1/namespaces/{OPERANDS}/services/nvidia-dcgm-exporter:9400/proxy/metrics"
    lines = user.kubectl("get", "--raw", service).splitlines()
    assert len([line for line in lines if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]) == GPUS


def verified(user: NodeUser) -> dict[str, str]:
    checks = json.loads(user.cli("verify", "--cluster-only", "--json", "-i", str(user.inventory)).out)["checks"]
    return {check["check"]: f"{check['outcome']} {check['reason']}".strip() for check in checks}


@pytest.mark.usefixtures("first_run")
def test_acceptance_tests_pass_and_ask_the_exporter(user: NodeUser) -> None:
    """With the rights of runs all but one, which needs another right."""
    asks_exporter = "dcgm exporter answers for every gpu"
    ended = verified(user)
    assert ended.pop(asks_exporter) == "skipped this account has no permission to get pods/proxy"
    assert set(ended.values()) == {"passed"}, ended
    user.kubectl("create", "role", "metrics", "-n", OPERANDS, "--verb=get", "--resource=pods/proxy")
    user.kubectl("create", "rolebinding", "metrics", "-n", OPERANDS, "--role=metrics", "--user=gpu-provision")
    try:
        assert verified(user)[asks_exporter] == "passed"
    finally:
        user.kubectl("delete", "role,rolebinding", "metrics", "-n", OPERANDS)


@pytest.mark.usefixtures("first_run")
def test_the_second_run_changes_nothing(user: NodeUser) -> None:
    """By stock pyinfra: every operation says so, and the API server's audit log has no write and few requests."""
    writes, requests = len(user.writes()), len(user.requests())
    second = user.pyinfra("-y", check=True).text
    assert user.writes()[writes:] == []
    assert "Success" not in second.partition("Beginning operation run")[2].partition("Results")[0]
    assert second.count("No changes") == second.count("Starting operation") > 0
    assert len(user.requests()) - requests < _REQUESTS


@pytest.mark.usefixtures("first_run")
def test_a_deleted_daemonset_and_an_edit_are_repaired(user: NodeUser) -> None:
    user.kubectl("delete", "daemonset", "-n", OPERANDS, "gpu-feature-discovery")
    worker = ("daemonset", "node-feature-discovery-worker", "-n", NFD)
    user.kubectl("set", "resources", *worker, "--requests=cpu=7m")
    plan = json.loads(user.cli("plan", "--json", "-i", str(user.inventory)).out)
    changes = {(change["action"], change["object"]["name"]) for change in plan["changes"]}
    mended = {("create", "gpu-feature-discovery"), ("update", "node-feature-discovery-worker")}
    assert changes - {("wait", "node-feature-discovery-worker")} == mended
    user.apply(check=True)
    (container,) = user.json(*worker)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "5m"
    assert user.pod("gpu-feature-discovery")["status"]["phase"] == "Running"
