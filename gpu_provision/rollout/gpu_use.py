"""Whether and how a pod uses GPUs: by resources, ResourceClaims, runtime class, or paths of the host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.snapshot import GpuUse

_WORKLOAD_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")  # with what follows: gpu.shared, mig-1g.5gb
_RUNTIME_CLASSES = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
_PATHS = ("/dev/nvidia", "/run/nvidia", "/var/run/nvidia", "/proc/driver/nvidia", "/usr/local/nvidia")
_NO_DEVICES = frozenset({"", "void", "none"})
_CLAIMS = "gpu.nvidia.com"  # the DRA driver of GPUs


def gpu_use_of(manifest: Manifest, claims: Collection[tuple[str, str]] | None = ()) -> GpuUse:
    """Return how a pod uses GPUs, by the most certain evidence."""
    spec = manifest["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if any(name.startswith(_WORKLOAD_RESOURCES) for container in containers for name in _resources(container)):
        return GpuUse.REQUEST
    claimed = claims_named(manifest)
    if claims is not None and any(claim in claims for claim in claimed):
        return GpuUse.CLAIM
    if spec.get("runtimeClassName") in _RUNTIME_CLASSES:
        return GpuUse.RUNTIME_CLASS
    if any((volume.get("hostPath") or {}).get("path", "").startswith(_PATHS) for volume in spec.get("volumes") or ()):
        return GpuUse.HOST_PATH
    variables = (each for container in containers for each in container.get("env") or ())
    devices = (each.get("value", "") for each in variables if each["name"] == "NVIDIA_VISIBLE_DEVICES")
    if any(value not in _NO_DEVICES for value in devices):
        return GpuUse.ENVIRONMENT
    return GpuUse.SOME_CLAIM if claimed and claims is None else GpuUse.NONE


def _resources(container: Mapping[str, Any]) -> Iterator[str]:
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        yield from (name for name, count in (resources.get(part) or {}).items() if str(count) != "0")


def claims_named(manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Return namespace and name of a pod's ResourceClaims: its own, and those made for it."""
    declared = manifest["spec"].get("resourceClaims")
    if not declared:
        return frozenset()
    made = (manifest.get("status") or {}).get("resourceClaimStatuses") or ()
    names = (claim.get("resourceClaimName", "") for claim in (*declared, *made))
    return frozenset((manifest["metadata"].get("namespace", ""), name) for name in names if name)


def claims_of(manifests: Iterable[Manifest] | None) -> frozenset[tuple[str, str]] | None:
    """Return namespace and name of the ResourceClaims with allocated GPUs, without admin access; None if unknown."""
    if manifests is None:
        return None
    return frozenset(
        (each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in manifests
        if any(
            result.get("driver") == _CLAIMS and not result.get("adminAccess")
            for result in ((each.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
        )
    )
