"""What the actions of a rollout are as objects and patches. Pure."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import ref_of
from gpu_provision.planning.states import Situation, is_observed
from gpu_provision.rollout import states
from gpu_provision.rollout.actions import Cordon, Move
from gpu_provision.rollout.observe import Declared
from gpu_provision.rollout.policy import domain_of

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
            left_out="" if seen.context.part.has_node(target.name) else LEFT_OUT,
            is_template_observed=target.driver_group not in unobserved,
        )
        for target in (*seen.context.targets, *seen.context.others)
        if target.driver_group in templates
    }


def unobserved_groups(seen: Reading | Situation) -> frozenset[str]:
    """Return the driver groups whose DaemonSet has a template that the DaemonSet controller has not observed."""
    return frozenset(
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
        if (live := seen.observed.members.get(ref_of(item))) and not is_observed(live)
    )
