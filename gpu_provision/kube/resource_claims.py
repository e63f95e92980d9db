"""ResourceClaims, by which pods come by GPUs of NVIDIA's DRA driver; asked for only where a pod has a claim."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.rollout.observe import claims_named

VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1", "resource.k8s.io/v1alpha3")
"""The newest first; in all of them an allocation names the driver in the same place."""

_PLURAL = "resourceclaims"


class ResourceClaims:
    """The claims of one cluster, read again only when a pod names one that has not been looked up.

    A claim is allocated before its pod gets a node, so that what was read of it holds for as long as the pod is there.
    """

    def __init__(self, cluster: KubeClient) -> None:
        """Prepare; nothing is sent."""
        self._cluster = cluster
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._found: tuple[Manifest, ...] | None = ()

    def of(self, pods: Iterable[Manifest]) -> tuple[Manifest, ...] | None:
        """Return all claims, as last read; None if pods have some and we may not read them, or not in these versions.

        Raises UnreachableError.
        """
        named = frozenset(name for pod in pods for name in claims_named(pod))
        if not named <= self._known:
            self._known |= named
            self._found = self._read()
        return self._found

    def _read(self) -> tuple[Manifest, ...] | None:
        try:
            version = next((each for each in VERSIONS if _PLURAL in self._cluster.served(each)), "")
            return tuple(self._cluster.list(Kind(version, "ResourceClaim")).items) if version else None
        except ForbiddenError:
            return None
