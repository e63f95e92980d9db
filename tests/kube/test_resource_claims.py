"""ResourceClaims are asked for only where a pod has one, and only as often as a new one shows."""

from __future__ import annotations

from typing import Any, cast

from gpu_provision.kube.client import KubeClient, ObjectList
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.findings import Finding, ForbiddenError


class Server:
    """Has claims in one version, or none."""

    def __init__(self, version: str = "", *, refuses: bool = False) -> None:
        """Serve this version."""
        self.version, self.refuses, self.lists = version, refuses, list[Kind]()

    def served(self, version: str) -> frozenset[str]:
        """Return the resources of a version."""
        return frozenset({"resourceclaims"} if version == self.version else ())

    def list(self, kind: Kind) -> ObjectList:
        """Return one claim."""
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
    assert (claims.of([pod()]), server.lists) == ((), [])
    found = claims.of([pod(), pod("mine")])
    assert found is not None
    assert [claim["metadata"]["name"] for claim in found] == ["mine"]
    assert claims.of([pod("mine")]) is found
    claims.of([pod("another")])
    assert server.lists == [Kind("resource.k8s.io/v1beta1", "ResourceClaim")] * 2


def test_server_without_claims_or_rights_leaves_a_doubt() -> None:
    assert claims_of(Server()).of([pod("mine")]) is None
    assert claims_of(Server("resource.k8s.io/v1", refuses=True)).of([pod("mine")]) is None
