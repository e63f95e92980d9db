"""MIG devices of the pool's configuration, and a change of it.

Real: the label that the run writes and the MIG manager watches; the rights by which it pauses operands and deletes the
validator's pod; the DaemonSets' reaction to these labels; the ConfigMap of its configurations in its pod; the kubelet's
record of resources that come and go; the scheduler. A stand-in: its program, which divides no GPU. It writes the MIG
devices into the file that stands for the driver's library.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.node.nodes import GPUS
from tests.real.node.optional.test_sharing import MPS, labels, pool
from tests.real.node.settings import NODE
from tests.real.node.user import OPERANDS, VALIDATOR, NodeUser

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("first_run")]

SMALL, LARGE = "nvidia.com/mig-1g.6gb", "nvidia.com/mig-2g.12gb"


def configuration(profile: str, count: int) -> dict[str, Any]:
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {profile: count}}
    return {"config": {"data": {"version": "v1", "mig-configs": {"own": [entry]}}}}


def verdict(node: NodeUser) -> str:
    return str(node.json("configmap", "-n", OPERANDS, "optional-validations")["data"][NODE])


def test_a_pool_with_mig_gets_ready(node: NodeUser) -> None:
    """Without the configurations of before, in one run."""
    node.settings(
        mig={"strategy": "mixed"},
        mig_manager=configuration("1g.6gb", 4),
        device_plugin={"config": {}},
        pools=pool(node, device_plugin={}, mig={"config": "own"}),
    )
    node.apply(check=True)
    assert node.allocatable(SMALL) == str(4 * GPUS)
    assert node.allocatable() == "0"
    (manager,) = node.pod("nvidia-mig-manager")["status"]["containerStatuses"]
    assert manager["restartCount"] == 0, "it has the rights that it needs"
    found = labels(node)
    assert found["nvidia.com/mig.config.state"] == "success"
    assert found["nvidia.com/mig-1g.6gb.count"] == str(4 * GPUS)
    node.machine.until(lambda: not node.pods(MPS), what="the MPS control daemon stays")
    asking = node.finished_pod("divided", VALIDATOR, "vectorAdd", gpus=1, resource=SMALL)
    assert asking["status"]["phase"] == "Succeeded", node.log(asking)


def test_a_change_is_rolled_out_and_validated(node: NodeUser) -> None:
    """Another content under the same name, with the same driver; the operands are back, and so is the node."""
    driver, before = node.pod("nvidia-driver-daemonset")["metadata"]["uid"], verdict(node)
    node.settings(mig_manager=configuration("2g.12gb", 2))
    assert "rollout of MIG devices: 1 node in 1 wave" in node.cli("plan", "-i", str(node.inventory)).text
    node.apply(check=True)
    assert (node.allocatable(LARGE), node.allocatable(SMALL)) == (str(2 * GPUS), "0")
    assert node.pod("nvidia-driver-daemonset")["metadata"]["uid"] == driver
    assert verdict(node) != before
    assert not node.json("node", NODE)["spec"].get("unschedulable")
    paused = {name: value for name, value in labels(node).items() if "paused" in value}
    assert paused == {}


def test_the_next_run_writes_nothing(node: NodeUser) -> None:
    writes = len(node.writes())
    node.apply(check=True)
    assert node.writes()[writes:] == []
