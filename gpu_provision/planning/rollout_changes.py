"""The changes of a plan that follow from a rollout of drivers, and from nodes that left the inventory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpu_provision import components
from gpu_provision.components import labels, mig_manager
from gpu_provision.components.node_labels import NAME, departure_reasons, leaving_nodes
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef
from gpu_provision.model.plan import Action, Change, Departure, FieldChange, Plan, Schedule
from gpu_provision.planning import verdicts
from gpu_provision.planning.applyset import matches_node
from gpu_provision.planning.diff import path_of
from gpu_provision.planning.plan import (
    key_of_pod,
    label_path,
    label_withdrawals,
    node_change,
    sort_changes,
    validation_change,
)
from gpu_provision.planning.prune import emptied_daemonsets, superseded_pod_changes
from gpu_provision.planning.states import ClusterState, vector_add_of
from gpu_provision.planning.upgrades import DRIVER, GEOMETRY_PENDING, NO_DRIVER_RESTART, STACK_KEPT
from gpu_provision.planning.verdicts import VALIDATIONS, NodePatch
from gpu_provision.rollout import states as upgrade


def pods_kept_by_labels(node: NodeFacts, seen: ClusterState) -> Iterator[Manifest]:
    """Yield the stack's pods on a leaving node that end when the node loses its labels."""
    daemonsets = {ref.name: live for ref, live in seen.observed.members.items() if ref.kind == "DaemonSet"}
    after = {**node.labels, **seen.node_labels.get(node.name, {})}
    for pod in (pod for each in components.COMPONENTS for pod in seen.pods.get((each.name, node.name), ())):
        owners = (each for each in pod["metadata"].get("ownerReferences", ()) if each["kind"] == "DaemonSet")
        makers = (daemonsets.get(each["name"]) for each in owners)
        if any(maker is None or not matches_node(maker, after) for maker in makers):
            yield pod


def with_departures(
    plan: Plan, seen: ClusterState, schedule: Schedule, users: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Plan:
    """Return a plan with the departure of each node that left the inventory, or why the node keeps the stack.

    ``users``: node -> pods that lose a GPU; nodes whose pods could not be read are absent.
    """
    nodes = {node.name: node for node in leaving_nodes(seen.context)}
    if not nodes:
        return plan
    kept = {name: why for name, why in schedule.skipped if name in nodes}
    reasons = departure_reasons(tuple(nodes.values()), seen.context)
    later = {outlook.node for wave in schedule.waves[1:] for outlook in wave.nodes}
    changes = list[Change]()
    for change in plan.changes:
        name = change.ref.name
        if change.component != NAME or name not in nodes:
            changes.append(change)
        elif name in kept:
            why = f"{STACK_KEPT}: {kept[name]}"
            changes.append(Change(component=NAME, action=Action.WAIT, ref=change.ref, effects=(why,)))
        else:
            lost = Departure(pods=0, users=users.get(name), why=reasons[name])
            changes.append(_departure_change(change, nodes[name], seen, lost, certain=name not in later))
    rollout = replace(schedule, skipped=tuple(each for each in schedule.skipped if each[0] not in nodes))
    moving = {node for change in changes if change.ref.kind == "Node" for node in change.nodes}
    known = {change.ref for change in changes}
    moving |= nodes.keys() - kept.keys()
    changes += (each for each in emptied_daemonsets(seen, moving) if each.ref not in known)
    return replace(plan, changes=tuple(changes), rollout=None if rollout.is_empty else rollout)


def _departure_change(change: Change, node: NodeFacts, seen: ClusterState, lost: Departure, *, certain: bool) -> Change:
    marks = {label_path(upgrade.STATE): node.labels.get(upgrade.STATE)}
    marks |= {path_of("metadata", "annotations", key): node.annotations.get(key) for key in upgrade.ALL_ANNOTATIONS}
    written = tuple(FieldChange(path, old, None) for path, old in marks.items() if old is not None)
    departure = replace(lost, pods=sum(1 for _ in pods_kept_by_labels(node, seen)))
    fields = (*change.fields, *written)
    return replace(change, fields=fields, effects=(), departure=departure, certain=certain)


def with_rollout_changes(
    plan: Plan, schedule: Schedule, seen: ClusterState, *, proven: Collection[str] = (), outdated: Collection[str] = ()
) -> Plan:
    """Return a plan with its rollout, and with the validations, labels and deletions that follow from the rollout.

    Changes after a driver of a later wave are not certain. ``proven``: nodes under way whose new driver is validated.
    ``outdated``: nodes with another driver than the desired one; those left out are not validated.
    """
    # The first driver of a node needs no slot.
    group = label_path(labels.DRIVER_GROUP)
    of_nodes = [change for change in plan.changes if change.ref.kind == "Node"]
    first = {each.ref.name for each in of_nodes if any(f.path == group and f.old is None for f in each.fields)}
    schedule = replace(schedule, skipped=tuple(each for each in schedule.skipped if each[0] not in first))
    kept = {node for node, _ in schedule.skipped}
    later = {outlook.node for wave in schedule.waves[1:] for outlook in wave.nodes} | kept
    going = {*schedule.under_way, *(outlook.node for outlook in schedule.nodes)}
    unproven = kept.intersection(outdated)
    named = frozenset(going | kept)
    changes = [_limit_restarts(each, kept) for each in plan.changes if not _is_moot(each, unproven, named)]
    changes += _repeated_validations(changes, going.difference(proven), seen)
    changes = [*_with_group_labels(changes, going, seen)]
    known = {change.ref for change in changes}
    running = {key_of_pod(change) for change in changes if change.action is Action.RUN}
    changes += (change for change in superseded_pod_changes(seen, running) if change.ref not in known)
    moved = going.union(node for change in changes if change.ref.kind == "Node" for node in change.nodes)
    changes += label_withdrawals(changes, seen)
    changes += (change for change in emptied_daemonsets(seen, moved) if change.ref not in known)
    certain = (replace(each, certain=each.certain and _node_of(each) not in later) for each in changes)
    return replace(plan, rollout=schedule, changes=sort_changes(certain, plan.components))


def _limit_restarts(change: Change, kept: Collection[str]) -> Change:
    if change.component != DRIVER or change.action is not Action.UPDATE or not change.nodes:
        return change
    nodes = tuple(node for node in change.nodes if node not in kept)
    return replace(change, nodes=nodes, effects=change.effects if nodes else (*change.effects, NO_DRIVER_RESTART))


def _is_moot(change: Change, unproven: Collection[str], named: frozenset[str]) -> bool:
    """Whether a change is dropped, or computed again: a validation that does not run, its label, what a rollout says.

    ``named``: the nodes that the rollout names.
    """
    if change.component == mig_manager.NAME and change.action is Action.WAIT:
        return named.issuperset(change.nodes) and change.effects[0].startswith(GEOMETRY_PENDING)
    if change.component == verdicts.STARTUP_TAINT:
        return change.ref.name in unproven or not change.fields
    is_run = change.action is Action.RUN
    return _node_of(change) in unproven if is_run else change.ref.kind == "Node" and not change.fields


def _node_of(change: Change) -> str:
    if change.action is Action.RUN:
        return key_of_pod(change)[1]
    return change.ref.name if change.ref.kind == "Node" and change.nodes else ""


def _repeated_validations(changes: Iterable[Change], nodes: Collection[str], seen: ClusterState) -> Iterator[Change]:
    """Yield the validations that run again, also of passed content, as they depend on the driver's pod."""
    running = {key_of_pod(change) for change in changes if change.action is Action.RUN}
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            is_due = target.name in nodes and (component, target.name) not in running
            if is_due and vector_add_of(component, target, seen):
                yield validation_change(component, target, seen)


_LABELS_OF_ROLLOUT = (labels.DRIVER_GROUP, labels.MIG_CONFIG)


def _with_group_labels(changes: Iterable[Change], going: Collection[str], seen: ClusterState) -> Iterator[Change]:
    """Yield changes, with the labels that move nodes to another driver DaemonSet or request other MIG devices."""
    regrouped: dict[ObjectRef, Change] = {}
    for target in (each for each in seen.context.targets if each.name in going):
        wanted = seen.node_labels.get(target.name, {})
        pairs = ((key, wanted.get(key)) for key in _LABELS_OF_ROLLOUT)
        moved: dict[str, str | None] = {key: value for key, value in pairs if value and value != target.labels.get(key)}
        if target.facts and moved:
            write = NodePatch(moved, removes_taint=False)
            regroup = node_change(NAME, seen.parts[NAME].single[target.name], target.facts, write, seen)
            regrouped[regroup.ref] = regroup
    for change in changes:
        other = regrouped.pop(change.ref, None) if change.component == NAME else None
        if other:
            fields = {field.path: field for field in (*change.fields, *other.fields)}
            yield replace(change, fields=tuple(fields[path] for path in sorted(fields)), nodes=other.nodes)
        else:
            yield change
    yield from regrouped.values()
