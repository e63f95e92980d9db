"""ResourceClaims are asked for only where a pod has one, and only as often as a new one shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_provision.kube.client import Cluster, connect
from gpu_provision.kube.resource_claims import ResourceClaims
from tests.sandbox.apiserver.conftest import Running

_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "resourceclaims.resource.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/issues/4381"},
    },
    "spec": {
        "group": "resource.k8s.io",
        "names": {"kind": "ResourceClaim", "plural": "resourceclaims", "singular": "resourceclaim"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server without controllers; it does not have ResourceClaims yet."""
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield connect(str(running.server.kubeconfig))
    running.stop()


def pod(claim: str = "") -> dict[str, Any]:
    claims = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    return {"metadata": {"name": "a", "namespace": "default"}, "spec": {"resourceClaims": claims}}


def test_claims_are_read_where_a_pod_has_one(cluster: Cluster) -> None:
    """In whichever version the server has them; what has been looked up is not read again."""
    cluster.create(_DEFINITION)
    metadata = {"name": "mine", "namespace": "default"}
    cluster.create({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": metadata})
    claims, before = ResourceClaims(cluster), cluster.requests
    assert (claims.of([pod()]), cluster.requests) == ((), before)
    found = claims.of([pod(), pod("mine")])
    assert found is not None
    assert [claim["metadata"]["name"] for claim in found] == ["mine"]
    asked = cluster.requests
    assert claims.of([pod("mine")]) is found
    assert cluster.requests == asked
    claims.of([pod("another")])
    assert cluster.requests > asked


def test_a_server_without_them_leaves_a_doubt(cluster: Cluster) -> None:
    """So does one that refuses to list them."""
    assert ResourceClaims(cluster).of([pod("mine")]) is None
