"""A Pod object -> what a rollout has to know of it: whether it uses GPUs, who would start it again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from gpu_provision.components import labels, validator
from gpu_provision.diagnose.pods import phase
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.selectors import Selector, of_object
from gpu_provision.rollout.snapshot import Budget, Pod, Use

_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")  # with what follows: nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb
_RUNTIME_CLASSES = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
_PATHS = ("/dev/nvidia", "/run/nvidia", "/var/run/nvidia", "/proc/driver/nvidia", "/usr/local/nvidia")
_NO_DEVICES = frozenset({"", "void", "none"})
_MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod, which the kubelet starts again by itself
_CORDON = "node.kubernetes.io/unschedulable"  # taint of a cordoned node
_CLAIMS = "gpu.nvidia.com"  # the DRA driver that hands out GPUs

PodBudget = tuple[str, Selector, Budget]
"""Namespace, the pods that it covers, and what it allows."""


def pod_of(
    manifest: Manifest,
    *,
    budgets: Iterable[PodBudget] = (),
    claims: Collection[tuple[str, str]] | None = (),
    refusals: Mapping[str, str] | None = None,
) -> Pod:
    """Return a pod as rollouts see it.

    Args:
        manifest: The Pod.
        budgets: See `budgets_of`.
        claims: Namespace and name of every ResourceClaim that holds GPUs, None if nobody could tell; see `claims_of`.
        refusals: Uid -> what the API server last answered to its eviction.
    """
    metadata = manifest["metadata"]
    namespace, own = metadata.get("namespace", ""), metadata.get("labels") or {}
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    return Pod(
        namespace=namespace,
        name=metadata["name"],
        uid=metadata["uid"],
        owner=f"{owner['kind']} {owner['name']}" if owner else "",
        labels=own,
        use=use_of(manifest, claims),
        is_daemon=_MIRROR in (metadata.get("annotations") or {}) or bool(owner and owner["kind"] == "DaemonSet"),
        is_over=phase(manifest) in {"Succeeded", "Failed"},
        has_empty_dir=any("emptyDir" in volume for volume in manifest["spec"].get("volumes") or ()),
        tolerates_cordons=any(map(_tolerates_cordons, manifest["spec"].get("tolerations") or ())),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        refusal=(refusals or {}).get(metadata["uid"], ""),
        budgets=tuple(budget for where, covers, budget in budgets if where == namespace and covers(own)),
    )


def _tolerates_cordons(toleration: Mapping[str, Any]) -> bool:
    """Whether a toleration matches the taint of a cordon, which has no value."""
    exists = toleration.get("operator") == "Exists"
    keys = {_CORDON, ""} if exists else {_CORDON}
    matches = exists or not toleration.get("value")
    return toleration.get("key", "") in keys and matches and toleration.get("effect", "") in {"", "NoSchedule"}


def is_ours(manifest: Manifest) -> bool:
    """Whether a pod belongs to the stack itself: its driver manager pauses those by itself, or they end in seconds."""
    return labels.STACK in (manifest["metadata"].get("labels") or {}) or validator.has_made(manifest)


def use_of(manifest: Manifest, claims: Collection[tuple[str, str]] | None = ()) -> Use:
    """Say how a pod uses GPUs, the surest sign first."""
    spec = manifest["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if any(name.startswith(_RESOURCES) for container in containers for name in _resources(container)):
        return Use.REQUEST
    claimed = claims_named(manifest)
    if claims is not None and any(claim in claims for claim in claimed):
        return Use.CLAIM
    if spec.get("runtimeClassName") in _RUNTIME_CLASSES:
        return Use.RUNTIME_CLASS
    if any((volume.get("hostPath") or {}).get("path", "").startswith(_PATHS) for volume in spec.get("volumes") or ()):
        return Use.HOST_PATH
    if any(map(_asks_by_environment, containers)):
        return Use.ENVIRONMENT
    return Use.SOME_CLAIM if claimed and claims is None else Use.NONE


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


def _asks_by_environment(container: Mapping[str, Any]) -> bool:
    variables = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
    return variables.get("NVIDIA_VISIBLE_DEVICES", "") not in _NO_DEVICES


def budgets_of(manifests: Iterable[Manifest]) -> tuple[PodBudget, ...]:
    """Return PodDisruptionBudgets (policy/v1) as `pod_of` takes them."""
    return tuple(
        (
            each["metadata"].get("namespace", ""),
            of_object(each["spec"].get("selector")),
            Budget(each["metadata"]["name"], (each.get("status") or {}).get("disruptionsAllowed", 0)),
        )
        for each in manifests
    )


def claims_of(manifests: Iterable[Manifest] | None) -> frozenset[tuple[str, str]] | None:
    """Return namespace and name of the ResourceClaims that hold GPUs; admin access holds none. None for unknown."""
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
