"""ResourceClaims are read once, in the version that the server has."""

from __future__ import annotations

from typing import Any, cast

from gpu_provision.kube.client import KubeClient, ObjectList
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.findings import Finding, ForbiddenError


class Server:
    """Has claims in one version, or none."""

    def __init__(self, version: str = "", *, refuses: bool = False) -> None:
        self.version, self.refuses, self.lists = version, refuses, list[Kind]()

    def served_resources(self, version: str) -> frozenset[str]:
        return frozenset({"resourceclaims"} if version == self.version else ())

    def list(self, kind: Kind) -> ObjectList:
        if self.refuses:
            raise ForbiddenError(Finding(code="GP303", what="no"))
        self.lists.append(kind)
        return ObjectList([{"metadata": {"name": "mine", "namespace": "default"}}], "1")


def pod(claim: str = "") -> Manifest:
    claims = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    return {"metadata": {"name": "a", "namespace": "default"}, "spec": {"resourceClaims": claims}}


def claims_of(server: Any) -> ResourceClaims:
    return ResourceClaims(cast("KubeClient", server))


def test_claims_are_read_where_a_pod_has_a_new_one() -> None:
    """In whichever version the server has them."""
    server = Server("resource.k8s.io/v1beta1")
    claims = claims_of(server)
    assert (claims.list_for_pods([pod()]), server.lists) == ((), [])
    found = claims.list_for_pods([pod(), pod("mine")])
    assert found is not None
    assert [claim["metadata"]["name"] for claim in found] == ["mine"]
    assert claims.list_for_pods([pod("mine")]) is found
    claims.list_for_pods([pod("another")])
    assert server.lists == [Kind("resource.k8s.io/v1beta1", "ResourceClaim")] * 2


def test_server_without_claims_or_rights_leaves_a_doubt() -> None:
    assert claims_of(Server()).list_for_pods([pod("mine")]) is None
    assert claims_of(Server("resource.k8s.io/v1", refuses=True)).list_for_pods([pod("mine")]) is None
