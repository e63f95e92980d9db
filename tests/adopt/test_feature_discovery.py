"""For which nodes an adoption waits until Node Feature Discovery has seen them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.adopt.discovery import by_ref
from gpu_provision.adopt.feature_discovery import missing, not_seen, waiting
from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
CREATING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}],
}


def feature(node: str) -> Manifest:
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": node, "namespace": "nfd", "labels": {"nfd.node.kubernetes.io/node-name": node}},
        "spec": {"features": {}},
    }


def worker(node: str, status: dict[str, Any], *, owner: str = "DaemonSet", component: str = "nfd") -> Manifest:
    metadata = {
        "name": f"worker-{node}",
        "namespace": "nfd",
        "labels": {labels.COMPONENT: component},
        "ownerReferences": [{"kind": owner, "name": "any"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}, "status": status}


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((), "no worker pod"),
        ((worker("b", READY),), "worker nfd/worker-b has published nothing"),
        ((worker("b", CREATING),), "worker nfd/worker-b: worker: ImagePullBackOff: no"),
        ((worker("b", READY, owner="ReplicaSet"),), "no worker pod"),
        ((worker("b", READY, component="gfd"),), "no worker pod"),
    ],
    ids=["nothing runs", "silent", "cannot start", "the master", "another component"],
)
def test_a_node_without_node_feature_is_missing(pods: tuple[Manifest, ...], reason: str) -> None:
    assert missing(["b", "a"], by_ref([feature("a")]), by_ref(pods)) == {"b": reason}
    assert missing(["a"], by_ref([feature("a")]), by_ref(pods)) == {}


def test_the_wait_names_nodes_reasons_and_deadline() -> None:
    """A few nodes stand for many."""
    began = datetime(2026, 11, 24, 12, 58, 30, tzinfo=UTC)
    one = waiting({"b": "no worker pod"}, began, 300)
    assert one == "Node Feature Discovery has yet to see b (no worker pod); since 12:58:30, until 13:03:30 UTC"
    many = dict.fromkeys("abcde", "no worker pod")
    assert "c (no worker pod) and 2 more;" in waiting(many, began, 300)
    finding = not_seen(many, 300)
    assert (finding.code, finding.where) == ("GP366", "Node a, b, c, d, e")
