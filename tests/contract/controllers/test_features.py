"""Node Feature Discovery as our manifests use it: workers publish NodeFeature objects, the master labels nodes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests import data_file
from tests.contract.client import Object, until
from tests.contract.controllers.cluster import NODES, Cluster

_STACK = Path(__file__).resolve().parents[2] / "sandbox" / "kubelet" / "manifests" / "stack.yaml"
_FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1"
_PARTS = {"nodefeatures.nfd.k8s-sigs.io", "nfd-worker-conf", "nfd-master", "nfd-worker"}
_GPU = "feature.node.kubernetes.io/pci-10de.present"


def manifests(namespace: str) -> list[Object]:
    documents: list[Any] = list(data_file.documents(_STACK.read_text()))
    chosen = [copy.deepcopy(one) for one in documents if one["metadata"]["name"] in _PARTS]
    for one in chosen:
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = namespace
    return chosen


def test_workers_publish_and_the_master_labels(cluster: Cluster) -> None:
    for one in manifests(cluster.namespace):
        body = {key: value for key, value in one.items() if key not in {"apiVersion", "kind", "metadata"}}
        cluster.create(one["kind"], one["metadata"]["name"], metadata=one["metadata"], **body)
    until(lambda: cluster.server.ask("GET", f"{_FEATURES}/nodefeatures").code == 200)
    path = f"{_FEATURES}/namespaces/{cluster.namespace}/nodefeatures"
    until(lambda: {_node_of(one) for one in cluster.server.get(path)["items"]} >= set(NODES))
    for name in NODES:
        until(lambda name=name: _is_labelled(cluster, name))  # type: ignore[misc]
    assert cluster.get("Node", "sim-1")["metadata"]["labels"][_GPU] == "true"
    assert _GPU not in cluster.get("Node", "sim-2")["metadata"]["labels"]
    cluster.delete("DaemonSet", "nfd-worker")
    cluster.delete("Deployment", "nfd-master")
    cluster.delete("CustomResourceDefinition", "nodefeatures.nfd.k8s-sigs.io")


def _node_of(feature: Object) -> str:
    return str(feature["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"])


def _is_labelled(cluster: Cluster, node: str) -> bool:
    labels = cluster.get("Node", node)["metadata"]["labels"]
    return "feature.node.kubernetes.io/kernel-version.full" in labels
