"""Configuration that the inventory names but does not hold: its content counts, too."""

from __future__ import annotations

from collections.abc import Callable

from tests.scenarios.world import World

OPERANDS = "gpu-operator-resources"


def test_an_edit_of_a_named_config_map_rolls_the_pods_that_read_it(new_world: Callable[..., World]) -> None:
    """The reference notices neither; here the plan says which pods restart."""
    world = new_world()
    world.kubectl("create", "namespace", OPERANDS)
    world.kubectl(
        "create", "configmap", "metrics", "-n", OPERANDS, "--from-literal=dcgm-metrics.csv=DCGM_FI_DEV_GPU_UTIL"
    )
    world.settings(dcgm_exporter={"metrics_config": "metrics"})
    world.apply("--cluster-only", check=True)
    patch = '{"data": {"dcgm-metrics.csv": "DCGM_FI_DEV_FB_USED"}}'
    world.kubectl("patch", "configmap", "metrics", "-n", OPERANDS, "-p", patch)
    plan = world.cli("plan", "--cluster-only", "-i", str(world.inventory), check=True).out
    assert "nvidia-dcgm-exporter" in plan
    assert "restarts 3 pods" in plan
