"""What is patched onto a node: labels, and the end of the startup taint, as soon as the node counts as validated.

The label that names what was validated holds as long as the verdicts that earned it, see `planning.validation`: it goes
with a reboot, or with a pod that is replaced, until the validations have passed. A node that waits for another driver
keeps it until that one comes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_provision.components import labels, startup_taint
from gpu_provision.model.cluster import Manifest, NodeFacts, RenderContext, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import selects
from gpu_provision.planning.observed import NodeObjects, ObservedState
from gpu_provision.planning.upgrades import DRIVER, NOT_VALIDATED, has_installed, is_kept
from gpu_provision.planning.validation import NEVER_RUN, RUNS_IN, VALIDATIONS, Pods, Verdict, doubt, last_verdict

NAME = startup_taint.NAME

TO_BE_TOLD = "its label is not written yet"
"""Reason of the state of a node that is validated, and does not say so yet."""

Desired = Mapping[str, Sequence[Manifest]]
Parts = Mapping[str, NodeObjects]


class NodePatch(NamedTuple):
    """Labels that are to change, None removes one; ``frees`` says that the startup taint goes with the same write."""

    labels: dict[str, str | None]
    frees: bool

    @property
    def is_empty(self) -> bool:
        """Whether the node is as desired."""
        return not (self.labels or self.frees)


def node_patch(manifest: Manifest, node: NodeFacts, inventory: Inventory) -> NodePatch:
    """Return what makes a node as a partial Node of an inventory's components says.

    The label that says what was validated ends the startup taint. Where it never comes, since the inventory turns it
    off or has the node no more, the taint goes with the other labels: no other program would ever take it off.
    """
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    mark = wanted.get(labels.INVENTORY, "")
    is_off = bool(mark) and not inventory.specs.startup_taint.enabled
    frees = bool(wanted.get(labels.VALIDATED)) or mark is None or is_off
    return NodePatch(label_changes(manifest, node), frees and has_startup_taint(node))


def label_changes(manifest: Manifest, node: NodeFacts) -> dict[str, str | None]:
    """Return the labels of a node that are not as a partial Node says; None means: to be removed."""
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    return {key: value for key, value in wanted.items() if node.labels.get(key) != value}


def has_startup_taint(node: NodeFacts) -> bool:
    """Whether a node has the startup taint, whatever its effect."""
    return len(other_taints(node)) < len(node.taints)


def other_taints(node: NodeFacts) -> tuple[Mapping[str, Any], ...]:
    """Return the taints of a node but for the startup taint."""
    return tuple(taint for taint in node.taints if taint.get("key") != labels.NOT_VALIDATED)


def state_of(target: Target, found: Mapping[str, NodeState], *, is_reported: bool) -> NodeState:
    """Return where a node stands on its way to say that it is validated; ``found``: where its other components do."""
    if is_kept(found.get(DRIVER)):
        state, reason = State.READY, NOT_VALIDATED
    elif reason := _waits(found):
        state = State.PENDING
    else:
        state, reason = (State.READY, "") if is_reported else (State.PROGRESSING, TO_BE_TOLD)
    return NodeState(component=NAME, node=target.name, state=state, reason=reason)


def _waits(found: Mapping[str, NodeState]) -> str:
    """Return what a node waits for in the words of its validation; empty if all has passed."""
    proofs = [found[name] for name in VALIDATIONS if name in found]
    driver = found.get(DRIVER)
    # A driver that is only configured otherwise is validated without another validation.
    missing = not proofs or (driver is not None and driver.state is not State.READY)
    waits = (proof.reason or NEVER_RUN for proof in proofs if proof.state is not State.READY)
    return next(waits, NEVER_RUN if missing else "")


def expired_labels(
    context: RenderContext, desired: Desired, parts: Parts, observed: ObservedState, pods: Pods
) -> dict[str, dict[str, str | None]]:
    """Return the label that says what does not hold any more, as one to remove, by node."""
    if NAME not in desired:
        return {}
    told = (target for target in context.targets if target.facts and labels.VALIDATED in target.facts.labels)
    return {each.name: {labels.VALIDATED: None} for each in told if not _holds(each, parts, observed, pods)}


def _holds(target: Target, parts: Parts, observed: ObservedState, pods: Pods) -> bool:
    if NAME not in parts or target.name not in parts[NAME].single:
        return False  # validations do not run there any more
    shown = {
        name: last_verdict(name, target.name, observed, pods)
        for name, runs_in in RUNS_IN.items()
        if _concerns(parts.get(runs_in), target)
    }
    known = {name: verdict for name, verdict in shown.items() if verdict}
    if not known or not all(verdict.passed for verdict in known.values()):
        return False
    below = [name for name, part in parts.items() if _concerns(part, target)]
    if len(known) == len(shown) and _hold(known, target, pods, below):
        return True
    # A validator's pod that was replaced has no verdict yet; that of the pod before it is gone with it.
    return _hold(known, target, pods, {DRIVER}.intersection(below)) and _waits_for_driver(target, parts, pods)


def _hold(shown: Mapping[str, Verdict], target: Target, pods: Pods, below: Collection[str]) -> bool:
    """Whether verdicts of whichever content still hold, as far as they stand on some components."""
    return not any(doubt(name, target, "", verdict, pods, below=below) for name, verdict in shown.items())


def _concerns(part: NodeObjects | None, target: Target) -> bool:
    live = target.facts.labels if target.facts else {}
    return part is not None and (target.name in part.single or any(selects(each, live) for each in part.daemonsets))


def _waits_for_driver(target: Target, parts: Parts, pods: Pods) -> bool:
    """Whether the driver is still to be replaced. Its validation waits for that, whatever else is replaced before."""
    daemonsets = parts[DRIVER].daemonsets if DRIVER in parts else ()
    groups = ((each, each["spec"]["template"]["spec"]["nodeSelector"].get(labels.DRIVER_GROUP)) for each in daemonsets)
    wanted = next((each for each, group in groups if group == target.driver_group), None)
    drivers = (pod for pod in pods.get((DRIVER, target.name), ()) if not pod["metadata"].get("deletionTimestamp"))
    return wanted is not None and any(not has_installed(pod, wanted) for pod in drivers)
