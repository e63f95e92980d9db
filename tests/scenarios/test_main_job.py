"""What a newcomer does, in order, with stock pyinfra; each test goes on where the last one ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.scenarios.world import OPERANDS, World

GPU_NODES = {"t4-1": 1, "t4-2": 1, "h100-1": 8}


@pytest.fixture(scope="module")
def first_run(world: World) -> str:
    return world.pyinfra("-y", check=True).text


def test_the_first_run_brings_everything_up(world: World, first_run: str) -> None:
    status = world.status()
    assert all(row["state"] == "ready" and row["ready"] == row["desired"] for row in status["components"]), first_run
    offered = {row["node"]: row["allocatable"] for row in status["nodes"] if row["allocatable"]}
    assert offered == GPU_NODES


def test_nodes_without_a_gpu_get_no_component(world: World, first_run: str) -> None:
    pods = world.json("pods", "-n", OPERANDS)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(GPU_NODES), first_run


def test_vector_add_passed_on_every_gpu_node(world: World, first_run: str) -> None:
    """Twice: in the validator's pod without asking for a GPU, then with a GPU that Kubernetes granted.

    Of the second one only the record is left.
    """
    pods = world.pods("nvidia-operator-validator")
    assert {pod["spec"]["nodeName"] for pod in pods} == set(GPU_NODES), first_run
    for pod in pods:
        (ran,) = (each for each in pod["status"]["initContainerStatuses"] if each["name"] == "cuda-validation")
        assert "Test PASSED" in ran["state"]["terminated"]["message"]
        boot = world.json("node", pod["spec"]["nodeName"])["status"]["nodeInfo"]["bootID"]
        assert ran["state"]["terminated"]["message"].startswith(f"boot {boot}\n")
    record = world.json("configmap", f"{world.name}-validations", "-n", OPERANDS)["data"]
    assert {node: list(json.loads(entry)) for node, entry in record.items()} == {
        node: ["device_plugin_validation"] for node in GPU_NODES
    }
    assert not world.pods("nvidia-device-plugin-validation")


def test_the_second_run_changes_nothing(world: World, first_run: str) -> None:
    """Every operation says so, and the API server's log has no write."""
    before = len(world.writes())
    second = world.pyinfra("-y", check=True).text
    assert len(world.writes()) == before, first_run
    assert "Success" not in second.partition("Beginning operation run")[2].partition("Results")[0]
    assert second.count("No changes") >= 12


def test_every_request_was_of_the_user_whose_kubeconfig_it_is(world: World, first_run: str) -> None:
    """On a real control plane that user has the rights that ``gpu-provision rbac`` prints, and no others."""
    config = yaml.safe_load(world.account().read_text())
    assert {request.user for request in world.requests()} == {config["users"][0]["name"]}, first_run


def test_a_version_change_is_one_field(world: World, first_run: str) -> None:
    world.edit(lambda text: text.replace("version: v0.20.0", "version: v0.19.3"))
    plan = world.plan().out
    assert "v0.20.0 -> " in plan, first_run
    assert "v0.19.3" in plan
    assert "will restart pods on 3 nodes" in plan
    changed = world.plan("--json").document
    updates = [change for change in changed["changes"] if change["action"] == "update"]
    assert [change["object"]["kind"] for change in updates] == ["DaemonSet"], updates
    assert len(updates[0]["fields"]) == 1
    rest = [change for change in changed["changes"] if change not in updates]
    assert {change["component"] for change in rest} == {"device_plugin_validation"}, rest
    assert changed["summary"]["wait"] == 0  # that old pods run until then is no news


def test_the_pyinfra_dry_run_names_operations_and_fields(world: World, first_run: str) -> None:
    dry = world.pyinfra("--dry", "--diff", check=True).text
    table = dry.partition("Detected changes")[2]
    changing = [line.strip() for line in table.splitlines() if "1 (@cluster/" in line]
    assert [line.split("  ")[0] for line in changing] == [
        "GPU stack | NVIDIA device plugin",
        "GPU stack | Device plugin validation",
    ], first_run
    assert "k8s-device-plugin:v0.19.3" in dry
    assert "restarts pods on 3 nodes" in dry


def test_the_next_run_applies_the_version_once(world: World, first_run: str) -> None:
    world.pyinfra("-y", check=True)
    images = {pod["spec"]["containers"][0]["image"] for pod in world.pods("nvidia-device-plugin-daemonset")}
    assert images == {"nvcr.io/nvidia/k8s-device-plugin:v0.19.3"}, first_run
    before = len(world.writes())
    world.pyinfra("-y", check=True)
    assert len(world.writes()) == before


def test_a_manual_edit_of_a_managed_field_is_shown_and_repaired(world: World, first_run: str) -> None:
    patch = {"spec": {"template": {"spec": {"priorityClassName": "system-cluster-critical"}}}}
    world.api.patch("daemonset", "gpu-feature-discovery", "-n", OPERANDS, patch=patch)
    plan = world.plan().text
    assert "priorityClassName" in plan, first_run
    assert "will undo an edit by kubectl-patch" in plan
    world.apply("--cluster-only", check=True)
    live = world.json("daemonset", "gpu-feature-discovery", "-n", OPERANDS)
    assert live["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical"


def test_what_the_inventory_no_longer_wants_is_removed(world: World, first_run: str) -> None:
    world.settings(dcgm_exporter={"enabled": False})
    world.apply("--cluster-only", check=True)
    left = {item["metadata"]["name"] for item in world.json("daemonsets,services", "-n", OPERANDS)["items"]}
    assert "nvidia-dcgm-exporter" not in left, first_run
    assert "gpu-feature-discovery" in left


def test_objects_of_other_people_are_left_alone(world: World, first_run: str) -> None:
    world.submit({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": OPERANDS}})
    world.settings(dcgm={"enabled": True})
    world.apply("--cluster-only", check=True)
    assert world.json("configmap", "theirs", "-n", OPERANDS), first_run


def test_the_record_of_a_run_holds_the_validations_own_lines(world: World, first_run: str) -> None:
    records = sorted((world.folder / "state" / "gpu-provision" / "runs" / world.name).glob("*.json"))
    first = json.loads(records[0].read_text())
    assert all("Test PASSED" in line["lines"] for line in first["evidence"]), first_run
    assert len(first["evidence"]) == 2 * len(GPU_NODES)


def test_labels_reach_driver_pods_that_run(world: World, first_run: str) -> None:
    """And leave them again; each pod is an item of the plan, none restarts, and a third run has nothing to do."""
    before = _drivers(world)
    for labels in ({"team": "ml"}, {}):
        world.edit(lambda text, said=labels: yaml.safe_dump({**yaml.safe_load(text), "daemonsets": {"labels": said}}))
        planned = world.plan("--json").document["changes"]
        writes = len(world.writes())
        world.apply("--cluster-only", check=True)
        pods = _drivers(world)
        assert {uid: pod["labels"].get("team") for uid, pod in pods.items()} == dict.fromkeys(
            before, labels.get("team")
        )
        patches = [each.path for each in world.writes()[writes:] if each.verb == "PATCH" and "/pods/" in each.path]
        patched = {path.rpartition("/")[2] for path in patches}
        assert (
            patched
            == {pod["name"] for pod in pods.values()}
            == {
                each["object"]["name"]
                for each in planned
                if each["object"]["kind"] == "Pod" and each["action"] == "update"
            }
        ), first_run
    assert world.plan("--json").document["changes"] == []


def _drivers(world: World) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["uid"]: pod["metadata"] for pod in world.pods("nvidia-driver-daemonset")}
