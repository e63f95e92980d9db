"""What becomes of the stack on nodes that left the inventory, as part of a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpu_provision import components
from gpu_provision.components.node_labels import NAME, leaving
from gpu_provision.model.cluster import Manifest, NodeFacts
from gpu_provision.model.plan import Action, Change, Departure, FieldChange, Plan, Schedule
from gpu_provision.planning.applyset import selects
from gpu_provision.planning.diff import path_of
from gpu_provision.planning.plan import emptied, label_path
from gpu_provision.planning.states import Situation
from gpu_provision.planning.upgrades import STAYS
from gpu_provision.rollout import states as upgrade


def pods_kept_by_labels(node: NodeFacts, seen: Situation) -> Iterator[Manifest]:
    """Yield the stack's pods on a node that left the inventory, but for those that run on nodes without its labels."""
    daemonsets = {ref.name: live for ref, live in seen.observed.members.items() if ref.kind == "DaemonSet"}
    after = {**node.labels, **seen.node_labels.get(node.name, {})}
    for component in components.COMPONENTS:
        for pod in seen.pods.get((component.name, node.name), ()):
            owners = (each for each in pod["metadata"].get("ownerReferences", ()) if each["kind"] == "DaemonSet")
            makers = (daemonsets.get(each["name"]) for each in owners)
            if any(maker is None or not selects(maker, after) for maker in makers):
                yield pod


def with_departures(
    plan: Plan, seen: Situation, found: Schedule, users: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Plan:
    """Return a plan that says what each node that left the inventory loses, or why it keeps the stack.

    Args:
        found: How the rollout goes.
        users: Node -> the pods that lose a GPU there; nodes whose pods could not be read are missing.
    """
    nodes = {node.name: node for node in leaving(seen.context)}
    if not nodes:
        return plan
    kept = {name: why for name, why in found.skipped if name in nodes}
    later = {outlook.node for wave in found.waves[1:] for outlook in wave.nodes}
    changes = list[Change]()
    for change in plan.changes:
        name = change.ref.name
        if change.component != NAME or name not in nodes:
            changes.append(change)
        elif name in kept:
            changes.append(_kept(change, kept[name]))
        else:
            changes.append(_leaving(change, nodes[name], seen, users.get(name), certain=name not in later))
    rollout = replace(found, skipped=tuple(each for each in found.skipped if each[0] not in nodes))
    moving = {node for change in changes if change.ref.kind == "Node" for node in change.nodes}
    known = {change.ref for change in changes}
    changes += (each for each in emptied(seen, moving | (nodes.keys() - kept.keys())) if each.ref not in known)
    return replace(plan, changes=tuple(changes), rollout=None if rollout.is_empty else rollout)


def _kept(change: Change, why: str) -> Change:
    return Change(component=NAME, action=Action.WAIT, ref=change.ref, effects=(f"{STAYS}: {why}",))


def _leaving(
    change: Change, node: NodeFacts, seen: Situation, users: tuple[str, ...] | None, *, certain: bool
) -> Change:
    """Return the change of a node with what goes besides its labels: what a rollout wrote there, and pods."""
    marks = {label_path(upgrade.STATE): node.labels.get(upgrade.STATE)}
    marks |= {path_of("metadata", "annotations", key): node.annotations.get(key) for key in upgrade.ALL_ANNOTATIONS}
    written = tuple(FieldChange(path, old, None) for path, old in marks.items() if old is not None)
    departure = Departure(pods=sum(1 for _ in pods_kept_by_labels(node, seen)), users=users)
    fields = (*change.fields, *written)
    return replace(change, fields=fields, effects=(), departure=departure, certain=certain)
