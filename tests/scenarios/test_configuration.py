"""Configuration that the inventory names but does not hold: its content counts, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.test_locks import as_administrator
from tests.scenarios.world import OPERANDS, USES_GPU, World, default_fleet


def test_an_edit_of_a_config_map_rolls_the_pods_that_read_it(new_world: Callable[..., World]) -> None:
    """The reference notices neither; here the plan says which pods restart."""
    world = new_world()
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERANDS}})
    metrics = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "metrics", "namespace": OPERANDS}}
    world.submit({**metrics, "data": {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_UTIL"}})
    world.settings(dcgm_exporter={"metrics_config": "metrics"})
    world.apply("--cluster-only", check=True)
    world.submit({**metrics, "data": {"dcgm-metrics.csv": "DCGM_FI_DEV_FB_USED"}})
    plan = world.plan().text
    assert "nvidia-dcgm-exporter" in plan
    assert "will restart pods on 3 nodes" in plan
    before = _exporters(world)
    world.apply("--cluster-only", check=True)
    assert not before & _exporters(world), "every exporter was restarted"


@pytest.mark.real  # for the time it takes
def test_a_validation_on_a_busy_node_is_deferred(new_world: Callable[..., World]) -> None:
    """An upgrade of the device plugin must not fail because the GPUs are in use, which is what they are for."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    world.run_pod("training", USES_GPU, nodeSelector={"kubernetes.io/hostname": "t4-1"})
    world.until(lambda: world.json("pod", "training")["status"].get("phase") == "Running")
    world.settings(device_plugin={"version": "v0.19.3"}, validator={"timeout": 20})
    run = world.apply("--cluster-only", "--json")
    assert run.code == 0, run.text
    warnings = [warning for warning in run.document["warnings"] if warning["code"] == "GP508"]
    assert "t4-1" in warnings[0]["what"]
    world.api.delete("pod", "training")
    assert world.apply("--cluster-only", "--json", check=True).document["warnings"] == []
    assert world.pods("nvidia-device-plugin-validation") == [], "validations do not pile up"


@pytest.mark.parametrize(("strategy", "offered"), [("single", "nvidia.com/gpu"), ("mixed", "nvidia.com/mig-1g.10gb")])
def test_a_node_is_validated_by_the_mig_devices_that_it_offers(
    new_world: Callable[..., World], strategy: str, offered: str
) -> None:
    *nodes, h100 = default_fleet()["nodes"]
    world = new_world(nodes=[*nodes, {**h100, "gpu": {**h100["gpu"], "mig": "7x1g.10gb"}}])
    world.settings(mig={"strategy": strategy})
    world.apply("--cluster-only", check=True)
    assert world.json("node", "h100-1")["status"]["allocatable"][offered] == "56"
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_an_nri_plugin_gives_gpus_to_operands(new_world: Callable[..., World]) -> None:
    """Without a runtime class, and without a change of the container runtime."""
    world = new_world()
    world.settings(cdi={"nri_plugin_enabled": True})
    world.apply("--cluster-only", check=True)
    assert world.json("runtimeclasses")["items"] == []
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_a_toolkit_beside_the_newest_containerd_comes_up(new_world: Callable[..., World]) -> None:
    """Its entrypoint compares schemas first."""
    *nodes, h100 = default_fleet()["nodes"]
    world = new_world(nodes=[*nodes, {**h100, "runtime": "containerd://2.3.2"}])
    world.apply("--cluster-only", check=True)
    (entrypoint,) = (
        item
        for item in world.json("configmaps", "-n", OPERANDS)["items"]
        if item["metadata"]["name"] == "nvidia-container-toolkit-entrypoint"
    )
    assert "config dump" in entrypoint["data"]["entrypoint.sh"]
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_operands_are_replaced_by_hand_on_delete(new_world: Callable[..., World]) -> None:
    world = new_world()
    world.settings(daemonsets={"update_strategy": "OnDelete"})
    world.apply("--cluster-only", check=True)
    before = _exporters(world)
    assert len(before) == 3
    world.settings(dcgm_exporter={"config": {"data": "DCGM_FI_DEV_SM_CLOCK, gauge, SM clock"}})
    assert "until it is deleted" in world.plan().text
    world.apply("--cluster-only", check=True)
    assert _exporters(world) == before
    pod = world.pods("nvidia-dcgm-exporter")[0]["metadata"]
    world.api.delete("pod", pod["name"], "-n", OPERANDS)
    world.until(lambda: len(now := _exporters(world)) == 3 and len(now - before) == 1)
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_objects_of_the_inventory_come_and_go_with_it(new_world: Callable[..., World]) -> None:
    """The ConfigMap is known before it is in the cluster, so its pods start once."""
    metrics = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "metrics"}}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": 1000}},
    }
    world = new_world()
    world.settings(
        dcgm_exporter={"metrics_config": "metrics"},
        extra_objects=[{**metrics, "data": {"dcgm-metrics.csv": "DCGM_FI_DEV_SM_CLOCK, gauge, SM clock"}}, quota],
    )
    world.apply("--cluster-only", check=True)
    assert world.json("resourcequota", "pods", "-n", OPERANDS)["spec"]["hard"] == {"pods": "1k"}
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    world.settings(dcgm_exporter={"enabled": False}, extra_objects=[])
    administrator = as_administrator(world)  # the inventory's rights no longer include quotas
    assert "ResourceQuota" in world.plan(*administrator).text
    world.apply("--cluster-only", *administrator, check=True)
    names = [item["metadata"]["name"] for item in world.json("configmaps", "-n", OPERANDS)["items"]]
    assert "metrics" not in names
    assert world.json("resourcequotas", "-n", OPERANDS)["items"] == []


def _exporters(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods("nvidia-dcgm-exporter")}
