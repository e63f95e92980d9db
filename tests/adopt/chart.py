"""A cluster as the GPU Operator's chart leaves it, and an operator that keeps it so."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping
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
    """Return the data file: ``crds``, ``helm``, ``policy`` and ``owned``; a copy of your own."""
    return copy.deepcopy(_chart())


@cache
def _chart() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load(DATA.read_text(encoding="utf-8"), loader)  # noqa: S506 - both are safe
    return found


def owned(policy: Manifest) -> list[Manifest]:
    """Return what the operator makes, with its owner, a ClusterPolicy that is in the cluster."""
    owner = {
        **{key: policy[key] for key in ("apiVersion", "kind")},
        **{key: policy["metadata"][key] for key in ("name", "uid")},
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return [{**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}} for item in chart()["owned"]]


def install(world: World, nodes: list[str]) -> None:
    """Do what ``helm install`` and then the operator do, and wait until every GPU can be allocated."""
    data = chart()
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    world.api.create(data["crds"], "helm")
    world.until(lambda: world.api.exists("clusterpolicies"))
    world.api.create(nfd.crds(), "helm")  # which every chart of Node Feature Discovery brings along
    world.api.create([*data["helm"], data["policy"]], "helm")
    policy = world.json("clusterpolicy", data["policy"]["metadata"]["name"])
    world.api.create(owned(policy), "gpu-operator")
    labels = {"nvidia.com/gpu.present": "true"} | {f"nvidia.com/gpu.deploy.{name}": "true" for name in _OPERANDS}
    labels["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-done"
    world.api.label("nodes", *nodes, labels=labels, manager="gpu-operator")
    world.until(lambda: all("nvidia.com/gpu" in world.json("node", name)["status"]["allocatable"] for name in nodes))


class Operator:
    """Does again and again what the operator does while its Deployment asks for a replica; a context manager.

    What is missing of its objects is made, and what has lost its hash is written over. Nothing else is looked at, as in
    the real one.

    Attributes:
        writes: What it had to write.
    """

    def __init__(self, world: World) -> None:
        """Prepare; nothing runs yet."""
        self._world, self._ended = world, threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)
        self.writes: list[str] = []
        self._wanted: list[Manifest] = []

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        cluster = connect(str(self._world.kubeconfig))
        with contextlib.closing(self._world.api):  # this thread's connection
            while not self._ended.wait(_PAUSE_SECONDS):
                with contextlib.suppress(ProvisionError):
                    self._look(cluster)

    def _look(self, cluster: KubeClient) -> None:
        """Look once, and write what is not as the operator wants it."""
        policies = cluster.list(CLUSTER_POLICY).items
        deployment = cluster.get(ObjectRef("apps/v1", "Deployment", NAMESPACE, NAMESPACE))
        if not policies or deployment is None or not deployment["spec"]["replicas"]:
            return
        live = {item["metadata"]["name"]: item for item in cluster.list(_DAEMON_SET, namespace=NAMESPACE).items}
        self._wanted = self._wanted or [item for item in owned(policies[0]) if item["kind"] == "DaemonSet"]
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
    """Yield the driver pods."""
    yield from world.json("pods", "-n", NAMESPACE, "-l", "app=nvidia-driver-daemonset")["items"]
