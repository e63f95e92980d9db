"""Clusters of the chart as values, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.plan import Adoption, plan_adoption
from gpu_provision.inventory import load
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import ClusterFacts, Manifest, index_by_ref
from gpu_provision.planning.prepare import prepare
from tests.adopt.chart import NAMESPACE, chart, owned_objects

INVENTORY: dict[str, Any] = {
    "name": "gpu",
    "cluster": {"context": "any", "namespace": NAMESPACE},
    "release": "26.7.0",
    "host_prerequisites": {"enabled": False},
    "pools": {"t4": {"gpu": {"model": "T4", "count": 1}}},
    "nodes": [{"name": "gpu-1", "pool": "t4"}],
}


OF_THE_CHART: dict[str, Any] = {"mig_manager": {"enabled": True}}
"""What every inventory of the chart's own settings declares, as the inventory has another default."""


def node(name: str = "gpu-1", **labels: str) -> Manifest:
    """Return a node with a GPU as Node Feature Discovery and GPU Feature Discovery have labelled it."""
    discovered = {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
        "nvidia.com/gpu.product": "Tesla-T4",
        "nvidia.com/gpu.count": "1",
    }
    metadata = {"name": name, "uid": f"uid-{name}", "labels": {**discovered, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {}}


def policy(**spec: Any) -> Manifest:
    """Return the chart's ClusterPolicy, with sections merged into its spec."""
    made: Manifest = chart()["policy"]
    merged = {name: {**made["spec"].get(name, {}), **section} for name, section in spec.items()}
    metadata = {**made["metadata"], "uid": "uid-policy"}
    return {**made, "metadata": metadata, "spec": {**made["spec"], **merged}}


def driver_pod(on: str = "gpu-1") -> Manifest:
    """Return the driver pod that the chart's DaemonSet makes on a node."""
    made = next(item for item in chart()["owned"] if item["metadata"]["name"] == "nvidia-driver-daemonset")
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "name": f"driver-{on}", "namespace": NAMESPACE, "uid": f"uid-driver-{on}"}
    spec = {**template["spec"], "nodeName": on}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def operator_install(**changes: Any) -> OperatorInstall:
    """Return what is in a cluster of the chart with one node; ``changes`` replace parts of it."""
    whole = policy()
    objects = [*chart()["helm"], *owned_objects(whole)]
    for item in objects:
        item["metadata"]["uid"] = f"uid-{item['kind']}-{item['metadata']['name']}"
    parts = {
        "policies": (whole,),
        "objects": index_by_ref(objects),
        "pods": (driver_pod(),),
        "nodes": (node(),),
        **changes,
    }
    nodes = tuple(map(node_facts, parts["nodes"]))
    return OperatorInstall(cluster="test", facts=ClusterFacts(version="v1.34.0", nodes=nodes), **parts)


def adoption_of(folder: Path, there: OperatorInstall, **inventory: Any) -> Adoption:
    """Return what an inventory's adoption of a cluster does; ``inventory`` replaces keys of it."""
    file = folder / "gpu.yaml"
    file.write_text(yaml.safe_dump({**INVENTORY, **inventory}), encoding="utf-8")
    context, desired = prepare(load(file), there.facts)
    return plan_adoption(there, context, desired)
