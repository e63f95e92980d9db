"""The main job on a real control plane; each test goes on where the last one ended."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.real.conftest import SPARE_NODES
from tests.real.user import RealUser
from tests.scenarios.test_killed_runs import end_state

pytestmark = pytest.mark.real

GPU_NODES = {"t4-1": 1, "t4-2": 1, "h100-1": 8}
OPERANDS = "gpu-operator-resources"
_KILLS_AFTER_WRITES = (1, 4, 8, 12)
_REQUESTS = 30


@pytest.fixture(scope="module")
def first_run(user: RealUser) -> str:
    """The first run's output."""
    return user.pyinfra("-y", check=True).text


@pytest.fixture(scope="module")
def undisturbed(user: RealUser, first_run: str) -> dict[str, Any]:
    """What the first run made."""
    assert first_run
    return made_by_us(user)


def made_by_us(user: RealUser) -> dict[str, Any]:
    """Our objects, and the labels of nodes, without what differs by nature: old servers name a token per account."""
    found = end_state(user)
    nodes = {name: item["metadata"]["labels"] for name, item in found.items() if name.startswith("Node ")}
    ours = {
        name: {key: value for key, value in item.items() if key != "secrets"}
        for name, item in found.items()
        if "gpu-provision.io/component" in item["metadata"].get("labels", {})
    }
    return nodes | ours


def finish(run: subprocess.Popen[str]) -> str:
    """End a command that is still running."""
    run.kill()
    return run.communicate(timeout=10)[0]


def test_the_first_run_brings_everything_up(user: RealUser, first_run: str) -> None:
    status = json.loads(user.cli("status", "--json", "-i", str(user.inventory), check=True).out)
    assert all(row["state"] == "ready" and row["ready"] == row["desired"] for row in status["components"]), first_run
    assert {row["node"]: row["allocatable"] for row in status["nodes"] if row["allocatable"]} == GPU_NODES


def test_nodes_without_a_gpu_get_no_component(user: RealUser, first_run: str) -> None:
    pods = user.json("pods", "-n", OPERANDS)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(GPU_NODES), first_run


def test_vector_add_passed_on_every_gpu_node(user: RealUser, first_run: str) -> None:
    """The API server fetches these lines from the nodes' kubelet endpoint."""
    for app in ("nvidia-driver-validation", "nvidia-device-plugin-validation"):
        pods = user.json("pods", "-n", OPERANDS, "-l", f"app={app}")["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == set(GPU_NODES), first_run
        for pod in pods:
            assert "Test PASSED" in user.kubectl("logs", "-n", OPERANDS, pod["metadata"]["name"]).out


@pytest.mark.usefixtures("undisturbed")
def test_the_second_run_changes_nothing(user: RealUser) -> None:
    """Every operation says so, and the server's audit log has no write and few requests."""
    writes, requests = len(user.writes()), len(user.requests())
    second = user.pyinfra("-y", check=True).text
    assert len(user.writes()) == writes
    assert "Success" not in second.partition("Beginning operation run")[2].partition("Results")[0]
    assert second.count("No changes") == second.count("Starting operation") >= 12
    assert len(user.requests()) - requests < _REQUESTS


@pytest.mark.usefixtures("first_run")
def test_a_version_change_is_one_field(user: RealUser) -> None:
    user.edit(lambda text: text.replace("version: v0.20.0", "version: v0.19.3"))
    plan = json.loads(user.cli("plan", "--json", "--cluster-only", "-i", str(user.inventory)).out)
    updates = [change for change in plan["changes"] if change["action"] == "update"]
    assert [(change["object"]["kind"], len(change["fields"])) for change in updates] == [("DaemonSet", 1)], updates
    rest = [change for change in plan["changes"] if change not in updates]
    assert {change["component"] for change in rest} == {"device_plugin_validation"}, rest


def test_the_next_run_applies_the_version_and_the_one_after_nothing(user: RealUser, first_run: str) -> None:
    user.pyinfra("-y", check=True)
    pods = user.json("pods", "-n", OPERANDS, "-l", "app=nvidia-device-plugin-daemonset")["items"]
    images = {pod["spec"]["containers"][0]["image"] for pod in pods}
    assert images == {"nvcr.io/nvidia/k8s-device-plugin:v0.19.3"}, first_run
    before = len(user.writes())
    user.pyinfra("-y", check=True)
    assert len(user.writes()) == before


def test_a_deleted_daemonset_comes_back(user: RealUser, first_run: str) -> None:
    user.kubectl("delete", "daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
    plan = user.cli("plan", "--cluster-only", "-i", str(user.inventory), check=True).out
    assert "nvidia-dcgm-exporter" in plan, first_run
    user.pyinfra("-y", check=True)
    exporter = user.json("daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
    assert exporter["status"]["numberReady"] == len(GPU_NODES)


def test_a_manual_edit_of_a_managed_field_is_shown_and_undone(user: RealUser, first_run: str) -> None:
    patch = '{"spec":{"template":{"spec":{"priorityClassName":"system-cluster-critical"}}}}'
    user.kubectl("patch", "daemonset", "gpu-feature-discovery", "-n", OPERANDS, "-p", patch)
    plan = user.cli("plan", "--cluster-only", "-i", str(user.inventory)).text
    assert "priorityClassName" in plan, first_run
    assert "undoes an edit by kubectl-patch" in plan
    user.apply("--cluster-only", check=True)
    live = user.json("daemonset", "gpu-feature-discovery", "-n", OPERANDS)
    assert live["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical"


def test_what_the_inventory_no_longer_wants_is_removed(user: RealUser, first_run: str) -> None:
    user.kubectl("create", "configmap", "theirs", "-n", OPERANDS)
    user.settings(dcgm_exporter={"enabled": False})
    user.apply("--cluster-only", check=True)
    left = {item["metadata"]["name"] for item in user.json("daemonsets,services,configmaps", "-n", OPERANDS)["items"]}
    assert "nvidia-dcgm-exporter" not in left, first_run
    assert {"gpu-feature-discovery", "theirs"} <= left


def test_a_field_of_another_manager_is_a_conflict_and_nothing_is_written(user: RealUser, first_run: str) -> None:
    def as_helm(priority: str) -> None:
        patch = {"spec": {"template": {"spec": {"priorityClassName": priority}}}}
        which = ("daemonset", "gpu-feature-discovery", "-n", OPERANDS)
        user.kubectl("patch", *which, "--field-manager", "helm", "-p", json.dumps(patch))

    as_helm("system-cluster-critical")
    before = len(user.writes())
    run = user.apply("--cluster-only")
    assert run.code == 1, first_run
    assert "GP304" in run.text
    assert "helm" in run.text
    assert "priorityClassName" in run.text
    assert len(user.writes()) == before
    as_helm("system-node-critical")
    assert user.apply("--cluster-only").code == 0, "both want the same again"


def test_a_driver_that_does_not_build_fails_its_node_alone(user: RealUser, first_run: str) -> None:
    """An upgrade of the driver; the other nodes are finished and validated."""
    user.fault({"fault": "driver-build-fails", "node": "t4-2"})
    user.settings(driver={"timeout": 10, "version": "580.126.20"})
    run = user.apply("--cluster-only", "--json")
    assert run.code == 1, run.text
    document = json.loads(run.out)
    errors = [error for error in document["errors"] if error["code"] == "GP501"]
    assert len(errors) == 1, document["errors"]
    assert "t4-2" in errors[0]["what"], first_run
    assert errors[0]["evidence"]
    assert errors[0]["fix"]
    status = json.loads(user.cli("status", "--json", "-i", str(user.inventory)).out)
    nodes = {row["node"]: row for row in status["nodes"]}
    assert nodes["t4-1"]["state"] == nodes["h100-1"]["state"] == "ready", status
    assert nodes["t4-1"]["driver"] == nodes["h100-1"]["driver"] == "580.126.20", status
    assert nodes["t4-2"]["state"] != "ready"

    user.fault()
    again = user.apply("--cluster-only")
    assert again.code == 0, again.text


def test_the_requests_of_a_run_do_not_grow_with_nodes(user: RealUser, first_run: str) -> None:
    def requests_of_a_run() -> int:
        before, writes = len(user.requests()), len(user.writes())
        user.apply("--cluster-only", check=True)
        assert len(user.writes()) == writes, first_run
        return len(user.requests()) - before

    few = requests_of_a_run()
    user.settings(pools={"spare": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "spare"}}})
    user.apply("--cluster-only", check=True)
    status = json.loads(user.cli("status", "--json", "-i", str(user.inventory), check=True).out)
    assert sum(row["allocatable"] == 1 for row in status["nodes"]) == 2 + SPARE_NODES
    assert requests_of_a_run() == few


def test_the_second_of_two_runs_is_refused_and_killed_ones_are_finished(
    new_user: RealUser, undisturbed: dict[str, Any]
) -> None:
    """The run after several that were killed, each a few writes further on, ends as an undisturbed one."""
    new_user.fault({"fault": "driver-slow", "node": "t4-1", "seconds": 3000})
    for writes in _KILLS_AFTER_WRITES:
        done = len(new_user.writes()) + writes
        run = new_user.start(*new_user.apply_command, "--cluster-only")
        try:
            new_user.until(lambda run=run, done=done: run.poll() is not None or len(new_user.writes()) >= done)
            assert run.poll() is None, finish(run)
            second = new_user.apply("--cluster-only") if writes == _KILLS_AFTER_WRITES[-1] else None
        finally:
            finish(run)
    assert second is not None
    assert second.code == 75, second.text
    assert f"pid {run.pid}" in second.text
    new_user.fault()
    slow = ("-n", OPERANDS, "-l", "app=nvidia-driver-daemonset", "--field-selector", "spec.nodeName=t4-1")
    new_user.kubectl("delete", "pod", *slow)
    new_user.apply("--cluster-only", check=True)
    assert made_by_us(new_user) == undisturbed
    before = len(new_user.writes())
    new_user.apply("--cluster-only", check=True)
    assert len(new_user.writes()) == before, "the run after it changes nothing"
