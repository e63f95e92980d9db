"""What a rollout of the driver brings about besides new drivers, as changes of a plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gpu_provision.components import labels
from gpu_provision.model.plan import Action, Change, Plan, Schedule
from gpu_provision.planning import node_validation
from gpu_provision.planning.node_patches import NodeWrite
from gpu_provision.planning.plan import (
    emptied,
    in_order,
    key_of_pod,
    label_path,
    node_change,
    superseded_pods,
    validation_change,
    withdrawn,
)
from gpu_provision.planning.states import Situation, vector_add_of
from gpu_provision.planning.upgrades import DRIVER, NO_DRIVER_RESTART
from gpu_provision.planning.validation import VALIDATIONS

_NODE_LABELS = "node_labels"


def foreseen(
    plan: Plan, found: Schedule, seen: Situation, *, proven: Collection[str] = (), outdated: Collection[str] = ()
) -> Plan:
    """Return a plan with its rollout, and with what follows from it: what is validated again, labelled and deleted.

    What comes after a driver that is replaced later, or perhaps never, is not certain. Where no driver is replaced, no
    pod of it restarts.

    Args:
        proven: Nodes under way whose new driver has been validated.
        outdated: Nodes with another driver than the wanted one: one that is left out is not validated.
    """
    found = replace(found, skipped=tuple(each for each in found.skipped if each[0] not in _first_drivers(plan)))
    kept = {node for node, _ in found.skipped}
    later = {outlook.node for wave in found.waves[1:] for outlook in wave.nodes} | kept
    going = {*found.under_way, *(outlook.node for outlook in found.nodes)}
    unproven = kept.intersection(outdated)
    changes = [_foreseen(each, kept) for each in plan.changes if not _is_moot(each, unproven)]
    changes += _proofs(changes, going.difference(proven), seen)
    changes = [*_with_groups(changes, going, seen)]
    known = {change.ref for change in changes}
    running = {key_of_pod(change) for change in changes if _is_run(change)}
    changes += (change for change in superseded_pods(seen, running) if change.ref not in known)
    moved = going.union(node for change in changes if change.ref.kind == "Node" for node in change.nodes)
    changes += withdrawn(changes, seen)
    changes += (change for change in emptied(seen, moved) if change.ref not in known)
    certain = (replace(each, certain=each.certain and _about(each) not in later) for each in changes)
    return replace(plan, rollout=found, changes=in_order(certain, plan.components))


def _first_drivers(plan: Plan) -> frozenset[str]:
    """Return the nodes that get their first driver: it waits for no turn."""
    group = label_path(labels.DRIVER_GROUP)
    return frozenset(
        change.ref.name
        for change in plan.changes
        if change.ref.kind == "Node" and any(field.path == group and field.old is None for field in change.fields)
    )


def _foreseen(change: Change, kept: Collection[str]) -> Change:
    """Return a change of a driver's DaemonSet without the nodes that keep their driver."""
    if change.component != DRIVER or change.action is not Action.UPDATE or not change.nodes:
        return change
    nodes = tuple(node for node in change.nodes if node not in kept)
    return replace(change, nodes=nodes, effects=change.effects if nodes else (*change.effects, NO_DRIVER_RESTART))


def _is_moot(change: Change, unproven: Collection[str]) -> bool:
    """Whether a change is not made, or worked out again: a validation that does not run, and what it does to labels."""
    if change.component == node_validation.NAME:
        return change.ref.name in unproven or not change.fields
    return (_is_run(change) and _about(change) in unproven) or (change.ref.kind == "Node" and not change.fields)


def _is_run(change: Change) -> bool:
    return change.action is Action.RUN


def _about(change: Change) -> str:
    """Return the node that a change waits for; empty if it waits for none."""
    if _is_run(change):
        return key_of_pod(change)[1]
    return change.ref.name if change.ref.kind == "Node" and change.nodes else ""


def _proofs(changes: Iterable[Change], nodes: Collection[str], seen: Situation) -> Iterator[Change]:
    """Yield the validations that run again, also of content that has passed: all of them stand on the driver's pod."""
    running = {key_of_pod(change) for change in changes if _is_run(change)}
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            is_due = target.name in nodes and (component, target.name) not in running
            if is_due and vector_add_of(component, target, seen):
                yield validation_change(component, target, seen)


def _with_groups(changes: Iterable[Change], going: Collection[str], seen: Situation) -> Iterator[Change]:
    """Yield changes, and that nodes go over to another DaemonSet when their turn comes, as a change of their labels."""
    regrouped = {change.ref: change for change in _regrouped(going, seen)}
    for change in changes:
        other = regrouped.pop(change.ref, None) if change.component == _NODE_LABELS else None
        yield _joined(change, other) if other else change
    yield from regrouped.values()


def _regrouped(going: Collection[str], seen: Situation) -> Iterator[Change]:
    for target in seen.context.targets:
        group = seen.node_labels.get(target.name, {}).get(labels.DRIVER_GROUP)
        if target.facts and target.name in going and group not in {None, target.facts.labels.get(labels.DRIVER_GROUP)}:
            manifest = seen.parts[_NODE_LABELS].single[target.name]
            write = NodeWrite({labels.DRIVER_GROUP: group}, frees=False)
            yield node_change(_NODE_LABELS, manifest, target.facts, write, seen)


def _joined(change: Change, other: Change) -> Change:
    fields = {field.path: field for field in (*change.fields, *other.fields)}
    return replace(change, fields=tuple(fields[path] for path in sorted(fields)), nodes=other.nodes)
