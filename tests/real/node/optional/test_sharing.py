"""GPUs that pods share, by a configuration that the pool chooses: time slicing, then MPS.

Real: the ConfigMap of the configurations in the pods; the init container that chooses one, and the side-car that
watches the node's label with the rights of the manifests and signals another process of its pod; the kubelet's record
of the devices; the mounts that it gives to a client of MPS. Stand-ins: the programs of the device plugin's image, which
share nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.real.node.nodes import GPUS
from tests.real.node.settings import NODE
from tests.real.node.user import VALIDATOR, NodeUser

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("first_run")]

PLUGIN, MPS = "nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon"
_CLIENT = "vectorAdd && test -e $CUDA_MPS_PIPE_DIRECTORY/control && stat -c %d /dev/shm"


def pool(node: NodeUser, **settings: Any) -> dict[str, Any]:
    """Return the inventory's pools, with these settings of the one that has GPUs."""
    return {"a30": {**yaml.safe_load(node.inventory.read_text())["pools"]["a30"], **settings}}


def labels(node: NodeUser) -> dict[str, str]:
    found: dict[str, str] = node.json("node", NODE)["metadata"]["labels"]
    return found


def test_the_pools_configuration_shares_by_time(node: NodeUser) -> None:
    assert node.allocatable() == str(2 * GPUS)
    assert labels(node)["nvidia.com/gpu.replicas"] == "2"
    assert node.pods(MPS) == []
    asking = node.finished_pod("sliced", VALIDATOR, "vectorAdd && nvidia-smi -L", gpus=3)
    assert asking["status"]["phase"] == "Succeeded", node.log(asking)


def test_another_choice_reaches_the_running_plugin(node: NodeUser) -> None:
    """By the label alone: no pod restarts, and the MPS control daemon comes."""
    before = node.pod(PLUGIN)
    node.settings(pools=pool(node, device_plugin={"config": "many"}))
    node.apply(check=True)
    after = node.pod(PLUGIN)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0, 0]
    assert "Successfully sent signal 1 to nvidia-device-plugin" in node.log(after, "config-manager")
    assert node.allocatable() == str(4 * GPUS)
    strategy = "nvidia.com/gpu.sharing-strategy"
    node.machine.until(lambda: labels(node).get(strategy) == "mps", what="no label of MPS")
    assert "Starting MPS daemon" in node.log(node.pod(MPS), "mps-control-daemon-ctr")


def test_a_client_of_mps_gets_the_directories_of_the_daemon(node: NodeUser) -> None:
    """Both have them from the host, under the path that manifests and plugin agree upon."""
    client = node.finished_pod("client", VALIDATOR, _CLIENT, gpus=1)
    assert client["status"]["phase"] == "Succeeded", node.log(client)
    places = node.machine.run("stat", "-c", "%d", "/run/nvidia/mps/shm", "/run/nvidia/mps").split()
    assert node.log(client).split()[-1] == places[0] != places[1]


def test_the_next_run_writes_nothing(node: NodeUser) -> None:
    writes = len(node.writes())
    node.apply(check=True)
    assert node.writes()[writes:] == []
