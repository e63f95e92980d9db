"""A cluster of the GPU Operator's chart is taken over; each test goes on where the last one ended.

What the chart makes is reconstructed, see tests/adoption/gpu-operator-26.7.0.yaml; the garbage collector, the
DaemonSet controller and server-side apply are, with ``-m real``, Kubernetes' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.adopt.chart import NAMESPACE, Operator, driver_pods, install
from tests.answers import Answer
from tests.scenarios.conftest import Open
from tests.scenarios.world import ADOPTER, USES_GPU, World

GPU_NODES = ["gpu-1", "gpu-2", "gpu-3"]
KEPT = ("gpu-1", "gpu-2")
OTHER_DRIVER = "580.126.20"
_NODES = [
    {"name": "control-1", "roles": ["control-plane"]},
    {"name": "gpu-{}", "count": 3, "os": "ubuntu24.04", "gpu": {"model": "Tesla T4", "count": 2}},
]
_STATE = "nvidia.com/gpu-driver-upgrade-state"
_KINDS = "daemonsets,deployments,services,serviceaccounts,roles,rolebindings,configmaps"
_KILLS_AFTER = {"sandbox": (48,), "real": (1, 8, 24, 48)}  # writes of one process
_HELD = {"fault": "image-pull-fails", "node": "gpu-3", "image": f"driver:{OTHER_DRIVER}"}


class Cluster:
    def __init__(self, world: World) -> None:
        self.world, self.inventory = world, world.folder / "gpu.yaml"
        self.kubeconfig = world.kubeconfig_of(ADOPTER)

    def is_given_its_rights(self) -> None:
        words = ("rbac", "-i", str(self.inventory), "--adopt", "--user", ADOPTER)
        self.world.submit(self.world.cli(*words, check=True).out)

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Return the words of gpu-provision adopt on the inventory that an earlier one wrote, with these rights."""
        return "adopt", "-i", str(self.inventory), "--kubeconfig", str(self.kubeconfig), *arguments

    def adopt(self, *arguments: str) -> Answer:
        return self.world.cli(*self.command(*arguments))

    def drivers(self, *nodes: str) -> dict[str, str]:
        """Return the uid of the driver pod of some nodes, or of all; there is one each."""
        pods = [pod for pod in driver_pods(self.world) if pod["spec"].get("nodeName") in (nodes or GPU_NODES)]
        assert len(pods) == len(nodes or GPU_NODES)
        return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in pods}

    def declare_another_driver(self, node: str) -> None:
        document = yaml.safe_load(self.inventory.read_text())
        document["pools"]["other"] = {"gpu": {"model": "T4", "count": 2}, "driver": {"version": OTHER_DRIVER}}
        document["nodes"] = [{**each, "pool": "other"} if each["name"] == node else each for each in document["nodes"]]
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.json("pod", "job")
        return found


@pytest.fixture(scope="module")
def cluster(opening: Open, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that the chart has provisioned, with a job on one of its GPUs, and an inventory derived from it."""
    with opening(tmp_path_factory.mktemp("adoption"), nodes=_NODES, timings={"speed": 10}) as world:
        install(world, GPU_NODES)
        world.run_pod("job", USES_GPU, nodeName="gpu-1")
        world.until(lambda: world.json("pod", "job")["status"].get("phase") == "Running")
        made = Cluster(world)
        arguments = ("--inventory-out", str(made.inventory), "--kubeconfig", str(world.kubeconfig))
        world.cli("adopt", *arguments, check=True)
        made.is_given_its_rights()
        yield made


def test_import_prints_what_adopt_writes(cluster: Cluster) -> None:
    """Of the same cluster, with nothing but reads."""
    ran = cluster.world.cli("import", "--kubeconfig", str(cluster.world.kubeconfig), check=True)
    assert yaml.safe_load(ran.out) == yaml.safe_load(cluster.inventory.read_text())


def test_the_running_operator_reverts_edits_of_its_objects(cluster: Cluster) -> None:
    """Therefore it is stopped first: it makes its DaemonSet again, which takes the drivers back."""
    before = cluster.drivers()
    daemon_set = ("daemonset", "-n", NAMESPACE, "nvidia-driver-daemonset")
    first = cluster.world.json(*daemon_set)["metadata"]["uid"]
    with Operator(cluster.world) as operator:
        cluster.world.api.delete(*daemon_set, propagationPolicy="Orphan")
        cluster.world.until(lambda: operator.writes)
        cluster.world.until(lambda: all(pod["metadata"].get("ownerReferences") for pod in driver_pods(cluster.world)))
    again = cluster.world.json(*daemon_set)["metadata"]["uid"]
    assert operator.writes == ["create nvidia-driver-daemonset"]
    assert first != again
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in driver_pods(cluster.world)} == {again}
    assert cluster.drivers() == before


def test_a_dry_run_writes_nothing_and_lists_every_object(cluster: Cluster) -> None:
    """No one has confirmed anything yet."""
    before = len(cluster.world.writes())
    looked = cluster.adopt("--json")
    assert len(cluster.world.writes()) == before
    assert looked.code == 0, looked.text
    adoption = looked.document["adoption"]
    assert {each["node"]: each["keeps"] for each in adoption["drivers"]} == dict.fromkeys(GPU_NODES, True)
    fates = {f"{each['kind']} {each['name']}": each["fate"] for each in adoption["objects"]}
    assert fates["DaemonSet nvidia-driver-daemonset"] == "replace"
    assert fates["DaemonSet nvidia-container-toolkit-daemonset"] == "take over"
    assert fates["DaemonSet gpu-operator-node-feature-discovery-worker"] == "remove"
    assert fates["DaemonSet nvidia-mig-manager"] == fates["ServiceAccount nvidia-mig-manager"] == "take over"
    live = cluster.world.json(_KINDS, "-n", NAMESPACE)["items"]
    own = {
        f"{item['kind']} {item['metadata']['name']}"
        for item in live
        if item["metadata"]["name"] not in {"default", "kube-root-ca.crt", "gpu-provision-gpu-adopter"}
    }
    assert own <= fates.keys()


@pytest.mark.real  # for the time it takes
def test_repeated_kills_do_not_restart_a_matching_driver(cluster: Cluster) -> None:
    """The operator works on until it is stopped; the job never loses its GPU; the third node's driver is rolled out."""
    cluster.declare_another_driver("gpu-3")
    before, job = cluster.drivers(*KEPT), cluster.job()
    world = cluster.world
    with Operator(world) as operator:
        world.slow_down()
        world.fault(_HELD)  # no process gets past the rollout before it is killed
        for writes in _KILLS_AFTER[world.name]:
            most = len(world.writes()) + writes
            _kill_when(cluster, lambda most=most: len(world.writes()) >= most)
            assert cluster.drivers(*KEPT) == before
        _kill_when(cluster, partial(_rolls_out, world, "gpu-3"))
        assert _rolls_out(world, "gpu-3")
        world.fault()
        if world.name == "real":
            _kill_when(  # the last part has begun: the chart's own objects go
                cluster, lambda: any(each.verb == "DELETE" and "clusterroles" in each.path for each in world.writes())
            )
        world.speed_up()
        done = cluster.adopt("--yes")
        assert done.code == 0, done.text
        assert cluster.drivers(*KEPT) == before
    assert operator.writes == []
    pods = {pod["spec"]["nodeName"]: pod for pod in driver_pods(world)}
    owners = {node: pod["metadata"]["ownerReferences"][0]["name"] for node, pod in pods.items()}
    assert owners == {
        **dict.fromkeys(KEPT, "nvidia-driver-daemonset-ubuntu24.04"),
        "gpu-3": "nvidia-driver-daemonset-other-ubuntu24.04",
    }
    assert pods["gpu-3"]["spec"]["containers"][0]["image"].endswith(f"driver:{OTHER_DRIVER}-ubuntu24.04")
    rolled_out = world.json("node", "gpu-3")
    assert rolled_out["metadata"]["labels"][_STATE] == "upgrade-done"
    assert not rolled_out["spec"].get("unschedulable")
    after = cluster.job()
    assert after["metadata"]["uid"] == job["metadata"]["uid"]
    assert after["status"]["containerStatuses"] == job["status"]["containerStatuses"]


def _kill_when(cluster: Cluster, condition: Callable[[], bool]) -> None:
    run = cluster.world.start(*cluster.world.apply_command[:1], *cluster.command("--yes"))
    cluster.world.until(lambda: run.poll() is not None or condition(), seconds=300)
    run.kill()
    run.communicate(timeout=300)


def _rolls_out(world: World, node: str) -> bool:
    """Whether a node is on its way to another driver: only the next adoption can take it there."""
    return str(world.json("node", node)["metadata"]["labels"].get(_STATE, "upgrade-done")) != "upgrade-done"


@pytest.mark.real  # for the time it takes
def test_afterwards_there_is_nothing_to_do(cluster: Cluster) -> None:
    """Neither for the garbage collector, nor for a plan, nor for another adoption; what the operator needed is gone."""
    world = cluster.world
    collect_what_names_the_policy(world)
    before = len(world.writes())
    planned = world.cli("plan", "--json", "-i", str(cluster.inventory)).document
    assert (planned["changes"], planned["errors"]) == ([], [])
    again = cluster.adopt("--yes")
    assert again.code == 0, again.text
    assert "GP360" in again.err
    assert len(world.writes()) == before
    assert world.json("clusterpolicies")["items"] == []
    names = {f"{item['kind']} {item['metadata']['name']}" for item in world.json(_KINDS, "-n", NAMESPACE)["items"]}
    assert not {name for name in names if "node-feature-discovery" in name}
    assert "Deployment gpu-operator" not in names
    assert "DaemonSet nvidia-mig-manager" in names
    revisions = world.json("controllerrevisions", "-n", NAMESPACE, "-l", "app=nvidia-driver-daemonset")["items"]
    assert all(item["metadata"].get("ownerReferences") for item in revisions)
    assert "nvidia-driver-daemonset" not in {name.removeprefix("DaemonSet ") for name in names}


def collect_what_names_the_policy(world: World) -> None:
    """Wait until the garbage collector has taken a dependent of the policy that is gone: it has seen to all then."""
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "gone-for-ever"}
    metadata = {"name": "bait", "namespace": NAMESPACE, "ownerReferences": [owner]}
    world.submit({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    world.until(lambda: not world.api.exists("configmap", "bait", "-n", NAMESPACE))
