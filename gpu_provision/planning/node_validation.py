"""When a node counts as validated: its startup taint goes, its label names what passed. Pure.

The label holds as long as the verdicts that earned it, see `planning.validation`: it goes with a reboot, or with a pod
that is replaced, until the validations have passed. A node that waits for another driver keeps it until that one comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpu_provision.components import labels, startup_taint
from gpu_provision.model.cluster import Context, Manifest, Target
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import selects
from gpu_provision.planning.observed import NodeObjects, ObservedState
from gpu_provision.planning.upgrades import DRIVER, NOT_VALIDATED, has_installed, is_kept
from gpu_provision.planning.validation import (
    NEVER_RUN,
    RUNS_IN,
    VALIDATIONS,
    Pods,
    Verdict,
    doubt,
    last_verdict,
)

NAME = startup_taint.NAME

TO_BE_TOLD = "its label is not written yet"
"""Reason of the state of a node that is validated, and does not say so yet."""

Desired = Mapping[str, Sequence[Manifest]]


Parts = Mapping[str, NodeObjects]


def state_of(target: Target, found: Mapping[str, NodeState], *, is_told: bool) -> NodeState:
    """Return where a node stands on its way to say that it is validated.

    Args:
        found: Where the other components stand there.
        is_told: Whether it says so.
    """
    if is_kept(found.get(DRIVER)):
        return _state(target, State.READY, NOT_VALIDATED)
    if waits := _waits(found):
        return _state(target, State.PENDING, waits)
    return _state(target, *((State.READY, "") if is_told else (State.PROGRESSING, TO_BE_TOLD)))


def _waits(found: Mapping[str, NodeState]) -> str:
    """Return what a node waits for in the words of its validation; empty if all has passed."""
    proofs = [found[name] for name in VALIDATIONS if name in found]
    driver = found.get(DRIVER)
    # A driver that is only configured otherwise is validated without another validation.
    missing = not proofs or (driver is not None and driver.state is not State.READY)
    waits = (proof.reason or NEVER_RUN for proof in proofs if proof.state is not State.READY)
    return next(waits, NEVER_RUN if missing else "")


def _state(target: Target, state: State, reason: str) -> NodeState:
    return NodeState(component=NAME, node=target.name, state=state, reason=reason)


def expired_labels(
    context: Context, desired: Desired, parts: Parts, observed: ObservedState, pods: Pods
) -> frozenset[str]:
    """Return the nodes whose label says what does not hold any more."""
    if NAME not in desired:
        return frozenset()
    told = (target for target in context.targets if target.facts and labels.VALIDATED in target.facts.labels)
    return frozenset(target.name for target in told if not _holds(target, parts, observed, pods))


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
    wanted = _wanted_driver(target, parts)
    drivers = (pod for pod in pods.get((DRIVER, target.name), ()) if not _goes(pod))
    return wanted is not None and any(not has_installed(pod, wanted) for pod in drivers)


def _goes(pod: Manifest) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _wanted_driver(target: Target, parts: Parts) -> Manifest | None:
    daemonsets = parts[DRIVER].daemonsets if DRIVER in parts else ()
    groups = ((each, each["spec"]["template"]["spec"]["nodeSelector"].get(labels.DRIVER_GROUP)) for each in daemonsets)
    return next((each for each, group in groups if group == target.driver_group), None)


def without_labels(desired: Desired, nodes: frozenset[str]) -> Desired:
    """Return what is desired for now: without the label of nodes where it does not hold."""
    return {**desired, "node_labels": [*_without_label(desired.get("node_labels", ()), nodes)]}


def _without_label(manifests: Sequence[Manifest], nodes: frozenset[str]) -> Iterator[Manifest]:
    for manifest in manifests:
        metadata = manifest["metadata"]
        if metadata["name"] in nodes:
            yield {**manifest, "metadata": {**metadata, "labels": {**metadata["labels"], labels.VALIDATED: None}}}
        else:
            yield manifest
