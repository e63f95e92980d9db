"""Which pods of others a removal has to know."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.destroy.discovery import operator_of
from gpu_provision.model.cluster import Manifest


def pod(phase: str = "Running", **labels: str) -> Manifest:
    metadata: dict[str, Any] = {"name": "p", "namespace": "gpu-operator", "uid": "u", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (pod(app="gpu-operator"), "gpu-operator/p"),
        (pod(**{"app.kubernetes.io/component": "gpu-operator"}), "gpu-operator/p"),
        (pod("Failed", app="gpu-operator"), ""),
        (pod(app="gpu-provision-operator"), ""),
        (pod(), ""),
    ],
)
def test_the_gpu_operator_is_known_by_its_pod(item: Manifest, named: str) -> None:
    """Its ClusterPolicy alone writes nothing."""
    assert operator_of([item]) == named
