"""The deletions of a run: undeclared objects, DaemonSets without nodes, and pods of earlier validations."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu_provision.components import machine_config
from gpu_provision.components.node_labels import leaving_nodes
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, ObjectRef, RenderContext, ref_of
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.applyset import component_of, is_owned_by
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.planning.upgrades import DRIVER, Pods, is_staying
from gpu_provision.planning.verdicts import VALIDATIONS


def superseded_pods(seen: ClusterState) -> Iterator[tuple[ComponentNode, Manifest]]:
    """Yield the validation pods that a run deletes: succeeded, with other content, or no longer declared."""
    for key in (key for key in seen.pods if key[0] in VALIDATIONS and seen.context.selection.has(*key)):
        part = seen.parts.get(key[0])
        wanted = part.single.get(key[1]) if part else None
        for pod in seen.pods[key]:
            is_needed = wanted and ref_of(wanted) == ref_of(pod) and pod_view.phase(pod) != "Succeeded"
            if not is_needed and not pod["metadata"].get("deletionTimestamp"):
                yield key, pod


def superseded_pod_changes(seen: ClusterState, running: Collection[ComponentNode]) -> Iterator[Change]:
    """Yield the deletions of validation pods that no new pod replaces."""
    for key, pod in superseded_pods(seen):
        if key not in running:
            yield Change(component=key[0], action=Action.DELETE, ref=ref_of(pod))


def deletions(seen: ClusterState) -> Iterator[Change]:
    """Yield the deletions of undeclared objects that are not in use."""
    for ref, live in _unwanted_objects(seen):
        if not is_in_use(live, seen.context, seen.pods):
            # As the cluster is: nodes reboot, too, for an inventory that declares plain Kubernetes.
            effects = machine_config.reboot_effects(live, seen.context.facts.openshift)
            yield Change(component=component_of(live), action=Action.DELETE, ref=ref, effects=effects)


def emptied_daemonsets(seen: ClusterState, moved: Collection[str]) -> Iterator[Change]:
    """Yield the deletions of DaemonSets that have no node once the ``moved`` nodes have moved to others, or left."""
    for ref, live in _unwanted_objects(seen):
        if is_in_use(live, seen.context, seen.pods) and not is_in_use(live, seen.context, seen.pods, without=moved):
            yield Change(component=component_of(live), action=Action.DELETE, ref=ref, certain=False)


def _unwanted_objects(seen: ClusterState) -> Iterator[tuple[ObjectRef, Manifest]]:
    manifests = (manifest for each in seen.desired.values() for manifest in each)
    wanted = {ref_of(manifest) for manifest in manifests if manifest["kind"] not in {"Node", "Pod"}}
    for ref, live in seen.observed.members.items():
        is_selected = seen.context.selection.has_component(component_of(live))
        if is_selected and ref not in wanted and not live["metadata"].get("deletionTimestamp"):
            yield ref, live


FOLLOWS_NODES = frozenset({DRIVER, "toolkit"})
"""Components with a DaemonSet for each group of nodes, which is deleted with its last node."""


def is_in_use(live: Manifest, context: RenderContext, pods: Pods, *, without: Collection[str] = ()) -> bool:
    """Whether an object is a DaemonSet that nodes still need, not counting the nodes in ``without``."""
    component = component_of(live)
    if live["kind"] != "DaemonSet" or component not in FOLLOWS_NODES:
        return False
    moving = context.targets if component == DRIVER else ()
    names = {target.name for target in moving if target.driver_group} | {node.name for node in leaving_nodes(context)}
    names |= {target.name for target in context.others}  # which a limited run leaves as they are
    served = (pods.get((component, name), ()) for name in names.difference(without))
    return any(is_staying(pod) and is_owned_by(pod, live) for own in served for pod in own)
