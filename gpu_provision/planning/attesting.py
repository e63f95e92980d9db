"""When a node is told to be validated: its startup taint goes, its label names what passed. Pure.

The label holds as long as what was validated runs: a node that waits for another driver keeps it until that one comes.
From then on it is gone until the validations of the new content have passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from gpu_provision.components import labels, startup_taint
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.model.cluster import Context, Manifest, Target, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.membership import digest_of
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.upgrades import DRIVER, NOT_RUN, NOT_VALIDATED, has_installed, is_kept

NAME = startup_taint.NAME

TO_BE_TOLD = "its label is to be written"
"""Reason of the state of a node that is validated, and does not say so yet."""

VALIDATIONS = ("driver_validation", "device_plugin_validation")
_REPLACED = ("toolkit", "device_plugin")
"""Components whose pods are replaced a few at a time, besides the driver."""

Desired = Mapping[str, Sequence[Manifest]]
Pods = Mapping[tuple[str, str], tuple[Manifest, ...]]


class Part(Protocol):
    """What a component has on nodes, see `planning.states.PerNode`."""

    @property
    def daemonsets(self) -> tuple[Manifest, ...]:
        """DaemonSets."""

    @property
    def single(self) -> Mapping[str, Manifest]:
        """What is about one node alone, by its name."""


Parts = Mapping[str, Part]


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
    waits = (proof.reason or NOT_RUN for proof in proofs if proof.state is not State.READY)
    return next(waits, NOT_RUN if missing else "")


def _state(target: Target, state: State, reason: str) -> NodeState:
    return NodeState(component=NAME, node=target.name, state=state, reason=reason)


def expired(context: Context, desired: Desired, parts: Parts, observed: Observed, pods: Pods) -> frozenset[str]:
    """Return the nodes whose label says what does not hold any more."""
    if NAME not in desired:
        return frozenset()
    told = (target for target in context.targets if target.facts and labels.VALIDATED in target.facts.labels)
    return frozenset(target.name for target in told if not _holds(target, parts, observed, pods))


def _holds(target: Target, parts: Parts, observed: Observed, pods: Pods) -> bool:
    if NAME not in parts or target.name not in parts[NAME].single:
        return False  # validations do not run there any more
    proofs = {name: parts[name].single.get(target.name) for name in VALIDATIONS if name in parts}
    if all(_has_passed(name, target, proof, observed) for name, proof in proofs.items() if proof):
        return True
    return _runs_earlier_content(target, parts, pods)


def _has_passed(component: str, target: Target, proof: Manifest, observed: Observed) -> bool:
    """Whether a validation has passed, on record or not yet."""
    if observed.passed.get((component, target.name)) == digest_of(proof):
        return True
    pod = observed.pods.get(ref_of(proof))
    return pod is not None and pod_view.phase(pod) == "Succeeded"


def _runs_earlier_content(target: Target, parts: Parts, pods: Pods) -> bool:
    """Whether all that is replaced on a node is still to be replaced: the driver, or what comes after it."""
    drivers = [pod for pod in pods.get((DRIVER, target.name), ()) if not _goes(pod)]
    wanted = _wanted_driver(target, parts)
    if wanted is not None:
        if any(not has_installed(pod, wanted) for pod in drivers):
            return True
        if not any(map(pod_view.is_ready, drivers)):
            return False
    return any(_is_outdated(component, target, parts, pods) for component in _REPLACED if component in parts)


def _goes(pod: Manifest) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _wanted_driver(target: Target, parts: Parts) -> Manifest | None:
    daemonsets = parts[DRIVER].daemonsets if DRIVER in parts else ()
    groups = ((each, each["spec"]["template"]["spec"]["nodeSelector"].get(labels.DRIVER_GROUP)) for each in daemonsets)
    return next((each for each, group in groups if group == target.driver_group), None)


def _is_outdated(component: str, target: Target, parts: Parts, pods: Pods) -> bool:
    contents = {digest_of(each["spec"]["template"]) for each in parts[component].daemonsets}
    there = (pod for pod in pods.get((component, target.name), ()) if not _goes(pod))
    return any(digest_of(pod) not in contents for pod in there)


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
