"""Nodes that are to be served by another driver DaemonSet: they stay with theirs until the rollout comes to them.

A node goes over with its label, upon which the controllers end one pod and start another, whatever runs on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpu_provision.components import labels
from gpu_provision.components.node_labels import leaving
from gpu_provision.model.cluster import Context, Manifest, Target
from gpu_provision.planning.membership import component_of
from gpu_provision.planning.upgrades import DRIVER, has_installed

FOLLOWS_NODES = frozenset({DRIVER, "toolkit"})
"""Components that have DaemonSets for some nodes only, so that one goes with the last of these nodes."""

Desired = Mapping[str, Sequence[Manifest]]
Pods = Mapping[tuple[str, str], tuple[Manifest, ...]]


def staying(targets: Iterable[Target], desired: Desired, pods: Pods) -> dict[str, str]:
    """Return the nodes that stay in their driver group for now, with the group: another driver is installed there."""
    by_group = {
        each["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: each
        for each in desired.get(DRIVER, ())
        if each["kind"] == "DaemonSet"
    }
    return {
        target.name: group
        for target in targets
        if (wanted := by_group.get(target.driver_group)) is not None
        if (group := _group_of(target)) not in {"", target.driver_group}
        if any(not has_installed(pod, wanted) for pod in pods.get((DRIVER, target.name), ()) if _stays(pod))
    }


def _group_of(target: Target) -> str:
    return target.facts.labels.get(labels.DRIVER_GROUP, "") if target.facts else ""


def _stays(pod: Manifest) -> bool:
    return not pod["metadata"].get("deletionTimestamp")


def without_regrouping(desired: Desired, stay: Mapping[str, str]) -> Desired:
    """Return what is desired for now: with the group labels of nodes that stay."""
    return {**desired, "node_labels": [_in_group(item, stay) for item in desired.get("node_labels", ())]}


def _in_group(manifest: Manifest, stay: Mapping[str, str]) -> Manifest:
    metadata = manifest["metadata"]
    if metadata["name"] not in stay:
        return manifest
    marks = {**metadata["labels"], labels.DRIVER_GROUP: stay[metadata["name"]]}
    return {**manifest, "metadata": {**metadata, "labels": marks}}


def is_in_use(live: Manifest, context: Context, pods: Pods, *, without: Collection[str] = ()) -> bool:
    """Return whether an object is a DaemonSet that nodes do without later: with another one's driver, or with none.

    Args:
        without: Nodes that have gone over, or left, by then.
    """
    component = component_of(live)
    if live["kind"] != "DaemonSet" or component not in FOLLOWS_NODES:
        return False
    going_over = context.targets if component == DRIVER else ()
    names = {target.name for target in going_over if target.driver_group} | {node.name for node in leaving(context)}
    served = (pods.get((component, name), ()) for name in names.difference(without))
    return any(_stays(pod) and _is_of(pod, live) for found in served for pod in found)


def _is_of(pod: Manifest, daemonset: Manifest) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["kind"] == "DaemonSet" and owner["name"] == daemonset["metadata"]["name"] for owner in owners)
