"""A cluster with the GPU Operator's chart, and a simulated operator that reconciles its objects."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from gpu_provision.adopt.discovery import CLUSTER_POLICY
from gpu_provision.components import nfd
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model.cluster import Kind, ObjectRef
from gpu_provision.model.findings import ProvisionError
from tests.scenarios.world import World

Manifest = dict[str, Any]
DATA = Path(__file__).with_name("gpu-operator-26.7.0.yaml")
NAMESPACE = "gpu-operator"
_DAEMON_SET = Kind("apps/v1", "DaemonSet")
_PAUSE_SECONDS = 0.4
_HASH = "nvidia.com/last-applied-hash"
_OPERANDS = (
    *("driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter"),
    *("node-status-exporter", "operator-validator", "client"),
)


def chart() -> dict[str, Any]:
    """Return a copy of the data file: ``crds``, ``helm``, ``policy`` and ``owned``."""
    return copy.deepcopy(_chart())


@cache
def _chart() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load(DATA.read_text(encoding="utf-8"), loader)  # noqa: S506 - both are safe
    return found


def owned_objects(policy: Manifest) -> list[Manifest]:
    """Return the operator's objects, owned by a live ClusterPolicy."""
    owner = {
        **{key: policy[key] for key in ("apiVersion", "kind")},
        **{key: policy["metadata"][key] for key in ("name", "uid")},
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return [{**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}} for item in chart()["owned"]]


def install(world: World, nodes: list[str], change: Callable[[Manifest], Manifest] = lambda item: item) -> None:
    """Create the objects of ``helm install`` and of the operator, and wait until every GPU is allocatable and labelled.

    ``change``: what an operator's object is on another platform.
    """
    data = chart()
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    world.api.create(data["crds"], "helm")
    world.until(lambda: world.api.exists("clusterpolicies"))
    world.api.create(nfd.crds(), "helm")  # which every chart of Node Feature Discovery brings along
    world.api.create([*data["helm"], data["policy"]], "helm")
    policy = world.json("clusterpolicy", data["policy"]["metadata"]["name"])
    world.api.create([*map(change, owned_objects(policy))], "gpu-operator")
    labels = {"nvidia.com/gpu.present": "true"} | {f"nvidia.com/gpu.deploy.{name}": "true" for name in _OPERANDS}
    labels["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-done"
    world.api.label("nodes", *nodes, labels=labels, manager="gpu-operator")
    world.until(lambda: all(_has_gpus(world.json("node", name)) for name in nodes))


def _has_gpus(node: Manifest) -> bool:
    """Whether the device plugin and GPU Feature Discovery have said what a node has."""
    is_labelled = {"nvidia.com/gpu.product", "nvidia.com/gpu.count"} <= node["metadata"]["labels"].keys()
    return is_labelled and "nvidia.com/gpu" in node["status"]["allocatable"]


class Operator:
    """Reconciles like the operator while its Deployment has a replica; a context manager.

    As the real operator, it creates missing objects, overwrites those without its hash, and ignores all else.

    Attributes:
        writes: Names of the written objects.
    """

    def __init__(self, world: World) -> None:
        self._world, self._ended = world, threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)
        self.writes: list[str] = []
        self._wanted: list[Manifest] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        cluster = connect(str(self._world.kubeconfig))
        with contextlib.closing(self._world.api):  # this thread's connection
            while not self._ended.wait(_PAUSE_SECONDS):
                with contextlib.suppress(ProvisionError):
                    self._look(cluster)

    def _look(self, cluster: KubeClient) -> None:
        policies = cluster.list(CLUSTER_POLICY).items
        deployment = cluster.get(ObjectRef("apps/v1", "Deployment", NAMESPACE, NAMESPACE))
        if not policies or deployment is None or not deployment["spec"]["replicas"]:
            return
        live = {item["metadata"]["name"]: item for item in cluster.list(_DAEMON_SET, namespace=NAMESPACE).items}
        self._wanted = self._wanted or [item for item in owned_objects(policies[0]) if item["kind"] == "DaemonSet"]
        for wanted in self._wanted:
            name = wanted["metadata"]["name"]
            if _hash(live.get(name)) != _hash(wanted):
                self._write("replace" if name in live else "create", wanted)

    def _write(self, verb: str, wanted: Manifest) -> None:
        with contextlib.suppress(AssertionError):  # refused: another client was first
            getattr(self._world.api, verb)([wanted], manager="gpu-operator")
            self.writes.append(f"{verb} {wanted['metadata']['name']}")


def _hash(item: Mapping[str, Any] | None) -> str:
    return str((item["metadata"].get("annotations") or {}).get(_HASH, "")) if item else "missing"


def driver_pods(world: World) -> Iterator[Manifest]:
    yield from world.json("pods", "-n", NAMESPACE, "-l", "app=nvidia-driver-daemonset")["items"]
