"""What to do next: pure, from a situation and its settled states to actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.components import labels, node_labels
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.pods import Crash
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import node_validation
from gpu_provision.planning.applyset import digest_of
from gpu_provision.planning.node_validation import NodePatch, node_patch, other_taints
from gpu_provision.planning.plan import superseded_pods
from gpu_provision.planning.states import TO_BE_LABELLED, ClusterState, Key, vector_add_of
from gpu_provision.planning.upgrades import DRIVER, is_kept
from gpu_provision.planning.validation import NOT_RUN, RUNS_IN, VALIDATIONS, verdict_of
from gpu_provision.rollout import states
from gpu_provision.rollout.actions import Cordon, Evict, StateTransition


@dataclass(frozen=True, slots=True)
class TaintRemoval:
    """That a node loses its startup taint: the version of it that was looked at, and the taints that stay."""

    revision: str
    taints: tuple[Mapping[str, Any], ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class PatchNode:
    """Write labels of one node, and take the startup taint off in the same write if it is ``freed``."""

    key: Key
    ref: ObjectRef
    uid: str
    labels: tuple[tuple[str, str | None], ...]
    freed: TaintRemoval | None = None

    def patch(self) -> dict[str, Any]:
        """Return the merge patch. Taints are a list that others write to, so they are only of the looked-at version."""
        metadata: dict[str, Any] = {"uid": self.uid, "labels": dict(self.labels)}
        if self.freed is None:
            return {"metadata": metadata}
        taints = [dict(taint) for taint in self.freed.taints]
        return {"metadata": {**metadata, "resourceVersion": self.freed.revision}, "spec": {"taints": taints or None}}


@dataclass(frozen=True, slots=True)
class StartPod:
    """Start one validation pod."""

    key: Key
    ref: ObjectRef
    manifest: Manifest = field(compare=False)  # its name holds the digest of its content


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete a pod: one whose vectorAdd does not count, so that another one runs, or a driver pod that starts over."""

    key: Key
    ref: ObjectRef
    uid: str


@dataclass(frozen=True, slots=True)
class TransitionNode:
    """Take a node one state further in the rollout of its driver."""

    key: Key
    ref: ObjectRef
    move: StateTransition

    def patch(self) -> dict[str, Any]:
        """Return the merge patch: state, memory and cordon change together, or not at all."""
        state, notes = {states.STATE: self.move.to.value or None}, dict(self.move.annotations)
        metadata = {"resourceVersion": self.move.revision, "labels": state, "annotations": notes}
        if self.move.cordon is Cordon.KEEP:
            return {"metadata": metadata}
        return {"metadata": metadata, "spec": {"unschedulable": True if self.move.cordon is Cordon.SET else None}}


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Ask the Eviction API for a pod. ``budgets`` names the budgets as they were seen: new ones, another try."""

    key: Key
    ref: ObjectRef
    evict: Evict
    budgets: str


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read what a container printed before it ended by itself; each restart is another step."""

    key: Key
    ref: ObjectRef
    uid: str
    crash: Crash


Step = PatchNode | StartPod | RemovePod | TransitionNode | EvictPod | ReadLog


def next_actions(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    """Yield everything that can be done now, but for what a rollout of the driver does."""
    yield from _label_steps(seen, settled)
    yield from _validation_steps(seen, settled)


def _label_steps(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    nodes = {node.name: node for node in seen.observed.facts.nodes}
    targets = {target.name for target in seen.context.targets}
    leaving = {node.name for node in node_labels.leaving(seen.context)}
    for manifest in seen.desired.get("node_labels", ()):
        key = ("node_labels", manifest["metadata"]["name"])
        state, node = settled.get(key), nodes.get(key[1])
        if node is None or (state is not None and state.state in _SETTLED):
            continue
        if node.name in leaving and (state is None or state.reason != TO_BE_LABELLED):
            continue  # the rollout has it
        write = node_patch(manifest, node, seen.context.inventory)
        if node.name in targets and not labels.nfd_has_spoken(node.labels):
            write = NodePatch({}, write.frees)  # the taint may be what keeps Node Feature Discovery off
        if not write.is_empty:
            yield _label(key, node, write)
    # What tells that a node has been validated comes last.
    told = seen.parts[node_validation.NAME].single if node_validation.NAME in seen.parts else {}
    for target in seen.context.targets:
        key, facts = (node_validation.NAME, target.name), target.facts
        state = settled.get(key)
        if facts and state and state.state is State.PROGRESSING and state.reason == node_validation.TO_BE_TOLD:
            yield _label(key, facts, node_patch(told[target.name], facts, seen.context.inventory))


def _label(key: Key, node: NodeFacts, write: NodePatch) -> PatchNode:
    freed = TaintRemoval(node.revision, other_taints(node)) if write.frees else None
    ref = ObjectRef("v1", "Node", "", node.name)
    return PatchNode(key, ref, node.uid, tuple(sorted(write.labels.items())), freed)


def _validation_steps(seen: ClusterState, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    for key, pod in superseded_pods(seen):
        if pod_view.phase(pod) != "Succeeded":  # those go together at the end of the run, and hold no GPU until then
            yield _removal(key, pod)
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            key = (component, target.name)
            state = settled.get(key)
            if state and state.state is State.PENDING and state.reason.startswith(NOT_RUN):
                yield from _another_run(key, target, settled, seen)
            elif state and state.state is State.PROGRESSING:
                wanted = vector_add_of(component, target, seen)
                found = wanted.pod if wanted else None
                if found is not None and pod_view.phase(found) in _ENDED and verdict_of(found) is None:
                    yield _removal(key, found)  # something else has ended it, so that it says nothing


def _another_run(key: Key, target: Target, settled: Mapping[Key, NodeState], seen: ClusterState) -> Iterator[Step]:
    """Start a vectorAdd. Its DaemonSet does so itself where a pod of the validator is deleted, or is not there yet."""
    wanted = vector_add_of(key[0], target, seen)
    if wanted is None:
        return
    if (pod := wanted.pod) is not None:
        is_replaced = digest_of(pod) != wanted.content or is_kept(settled.get((DRIVER, target.name)))
        has_run = pod["metadata"]["uid"] in seen.observed.void or verdict_of(pod) is not None
        if has_run and not is_replaced:
            yield _removal(key, pod)
        return
    manifest = seen.parts[RUNS_IN[key[0]]].single.get(target.name)
    if manifest and not any(ref_of(pod) == ref_of(manifest) for pod in seen.pods.get(key, ())):
        yield StartPod(key, ref_of(manifest), manifest)


def _removal(key: Key, pod: Manifest) -> RemovePod:
    return RemovePod(key, ref_of(pod), pod["metadata"]["uid"])


_ENDED = frozenset({"Succeeded", "Failed"})
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})  # labels that are ready are as wanted
