"""Reads the ResourceClaims of dynamic resource allocation that pods name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.findings import ForbiddenError

# The newest first; in all of them an allocation names the driver in the same place.
_CLAIMS = tuple(
    Kind(f"resource.k8s.io/{version}", "ResourceClaim") for version in ("v1", "v1beta2", "v1beta1", "v1alpha3")
)


class ResourceClaims:
    """The claims of one cluster, read again only when a pod names one that has not been looked up.

    A claim is allocated before its pod gets a node, so that what was read of it holds for as long as the pod is there.
    """

    def __init__(self, cluster: KubeClient) -> None:
        """Prepare; nothing is sent."""
        self._cluster = cluster
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._found: tuple[Manifest, ...] | None = ()

    def list_for_pods(self, pods: Iterable[Manifest]) -> tuple[Manifest, ...] | None:
        """Return all claims, as last read; None if they cannot be read in these versions. Raises UnreachableError."""
        from gpu_provision.rollout.gpu_use import claims_named  # which a plan does without

        named = frozenset(name for pod in pods for name in claims_named(pod))
        if not named <= self._known:
            self._known |= named
            self._found = None
            with suppress(ForbiddenError):
                served = (
                    kind for kind in _CLAIMS if "resourceclaims" in self._cluster.served_resources(kind.api_version)
                )
                kind = next(served, None)
                self._found = tuple(self._cluster.list(kind).items) if kind else None
        return self._found
