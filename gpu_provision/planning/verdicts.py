"""What a validation has shown and how long that holds: for one content, in one life of the node's stack. Pure.

A verdict is a text: the digest of the content, a dot, and the life. A life has a part for the node's boot and one for
each pod that the validation stands on. The restart of a container is another life too: it loads the driver again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from gpu_provision.components import labels
from gpu_provision.components.objects import digest
from gpu_provision.model.cluster import Manifest, Target
from gpu_provision.planning.membership import digest_of

VALIDATIONS: Mapping[str, tuple[str, ...]] = {
    "driver_validation": ("driver", "toolkit"),
    "device_plugin_validation": ("driver", "toolkit", "device_plugin"),
}
"""Validation -> the components whose pods on the node it stands on."""

NOT_RUN = "has not run"
"""Beginning of the reason of the state of a validation that is still to be started."""

NEVER_RUN = f"{NOT_RUN} for this content"
_NO_LIFE = f"{NOT_RUN} since an earlier version of gpu-provision, which recorded neither boot nor pods"
_SINCE = {
    "": "the node booted",
    "driver": "the driver pod was replaced or restarted",
    "toolkit": "the toolkit pod was replaced or restarted",
    "device_plugin": "the device plugin pod was replaced or restarted",
}

_KNOWN = 65536  # parts of lives; a fleet of 5,000 nodes has 20,000
_LENGTH = 8  # hexadecimal digits of each part, so that a label has room for a life, and the record for a fleet
_BOOT_AND_DRIVER = 2

Pods = Mapping[tuple[str, str], tuple[Manifest, ...]]


def life_of(component: str, target: Target, pods: Pods) -> str:
    """Return the present life of a node's stack, as far as a validation stands on it.

    Args:
        component: Name of the validation.
        pods: All pods of the stack by component and node.
    """
    boot = (target.facts.uid, target.facts.boot_id) if target.facts else ()
    stack = (_running(pods.get((name, target.name), ())) for name in VALIDATIONS[component])
    return "-".join(map(_part, (boot, *stack)))


def _running(pods: Iterable[Manifest]) -> tuple[tuple[str, int], ...]:
    """Return uid and restarts of each pod that stays."""
    there = (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
    return tuple(sorted((pod["metadata"]["uid"], _restarts(pod)) for pod in there))


def _restarts(pod: Manifest) -> int:
    """Return how often the pod's first container, which does its work, was restarted."""
    main = pod["spec"]["containers"][0]["name"]
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((int(each.get("restartCount", 0)) for each in found if each["name"] == main), 0)


@lru_cache(_KNOWN)
def _part(of: tuple[object, ...]) -> str:
    return digest(of, _LENGTH)


def wanted_verdict(component: str, target: Target, manifest: Manifest, pods: Pods) -> str:
    """Return the verdict that a validation has to have on a node today."""
    return f"{digest_of(manifest)}.{life_of(component, target, pods)}"


def verdict_of(pod: Manifest) -> str:
    """Return the verdict that a validation pod gives when it succeeds."""
    return f"{digest_of(pod)}.{life_named_by(pod)}"


def life_named_by(pod: Manifest) -> str:
    """Return the life that a validation pod was started for; empty if it names none."""
    return str(pod["metadata"]["labels"].get(labels.LIFE, ""))


def started_for(verdict: str, manifest: Manifest) -> Manifest:
    """Return a validation pod that names the life of a verdict."""
    metadata = manifest["metadata"]
    marks = {**metadata["labels"], labels.LIFE: life_in(verdict)}
    return {**manifest, "metadata": {**metadata, "labels": marks}}


def life_in(verdict: str) -> str:
    """Return the life of a verdict; empty for one of an earlier version, which names none."""
    return verdict.partition(".")[2]


def same_driver(life: str, other: str) -> bool:
    """Whether two lives are of one boot and one driver pod, whatever else was replaced."""
    return life.split("-")[:_BOOT_AND_DRIVER] == other.split("-")[:_BOOT_AND_DRIVER]


def why_void(component: str, verdict: str, wanted: str) -> str:
    """Say why a verdict on record, or none, is not the wanted one."""
    if verdict and not life_in(verdict):
        return _NO_LIFE
    if verdict.partition(".")[0] != wanted.partition(".")[0]:
        return NEVER_RUN
    parts = zip(("", *VALIDATIONS[component]), life_in(verdict).split("-"), life_in(wanted).split("-"), strict=False)
    changed = next((name for name, had, has in parts if had != has), None)
    return NEVER_RUN if changed is None else f"{NOT_RUN} since {_SINCE[changed]}"
