"""What the actions of a rollout are as objects and patches. Pure."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels
from gpu_provision.components.labels import INVENTORY
from gpu_provision.components.node_labels import leaving
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import NodeFacts, ref_of
from gpu_provision.planning.departures import pods_kept_by_labels
from gpu_provision.planning.states import Situation, is_observed
from gpu_provision.planning.upgrades import lost_its_rollout
from gpu_provision.rollout import states
from gpu_provision.rollout.actions import Cordon, Move
from gpu_provision.rollout.observe import Declared
from gpu_provision.rollout.policy import SHARED, domain_of
from gpu_provision.rollout.snapshot import Stack

LEFT_OUT = "is left out by --limit"
"""Why a rollout leaves a node alone that is not in the part that the run looks after."""

_UNSCHEDULABLE = {Cordon.SET: True, Cordon.LIFT: None}


def patch_of(move: Move) -> dict[str, Any]:
    """Return a move as one merge patch: state, memory and cordon change together, or not at all."""
    metadata: dict[str, Any] = {
        "resourceVersion": move.revision,
        "labels": {states.STATE: move.to.value or None},
        "annotations": dict(move.annotations),
    }
    if move.cordon is Cordon.KEEP:
        return {"metadata": metadata}
    return {"metadata": metadata, "spec": {"unschedulable": _UNSCHEDULABLE[move.cordon]}}


def declared_of(seen: Reading | Situation) -> dict[str, Declared]:
    """Return the driver of every node that gets one from us."""
    templates = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item["spec"]["template"]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    unobserved = unobserved_groups(seen)
    place = {node.name: position for position, node in enumerate(seen.context.inventory.nodes)}
    return {
        target.name: Declared(
            domain=domain_of(target.pool),
            position=place.get(target.name, len(place)),
            template=templates[target.driver_group],
            version=target.pool.driver.image.version,
            has_device_plugin="device_plugin" in seen.desired,
            left_out="" if seen.context.part.has_node(target.name) else LEFT_OUT,
            is_template_observed=target.driver_group not in unobserved,
        )
        for target in (*seen.context.targets, *seen.context.others)
        if target.driver_group in templates
    }


def without_driver(seen: Situation) -> dict[str, Declared]:
    """Return the nodes that are to have no driver of the stack, and are not at rest.

    These left the inventory, or came back to it half way with a driver of their own. They go by the inventory's own
    policy.
    """
    last, part = len(seen.context.inventory.nodes), seen.context.part
    nodes = {node.name: _stack_on(node, seen) for node in leaving(seen.context)}
    nodes |= dict.fromkeys((target.name for target in seen.context.targets if lost_its_rollout(target)), Stack.STAYS)
    return {
        name: Declared(
            domain=SHARED,
            position=last,
            template=None,
            left_out="" if part.has_node(name) else LEFT_OUT,
            stack=stack,
        )
        for name, stack in nodes.items()
    }


def _stack_on(node: NodeFacts, seen: Situation) -> Stack:
    if taken_back(node, seen):
        return Stack.LABELLED
    return Stack.ENDING if any(pods_kept_by_labels(node, seen)) else Stack.BARE


def taken_back(node: NodeFacts, seen: Situation) -> dict[str, None]:
    """Return the labels that a node that left the inventory loses before the stack's mark."""
    wanted = seen.node_labels.get(node.name, {})
    return {key: None for key, value in wanted.items() if value is None and key in node.labels and key != INVENTORY}


def unobserved_groups(seen: Reading | Situation) -> frozenset[str]:
    """Return the driver groups whose DaemonSet has a template that the DaemonSet controller has not observed."""
    return frozenset(
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
        if (live := seen.observed.members.get(ref_of(item))) and not is_observed(live)
    )
