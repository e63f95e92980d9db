"""What to do next: pure, from a situation and its settled states to actions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.components import labels, node_labels
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.diagnose.pods import Crash
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import attesting
from gpu_provision.planning.node_writes import NodeWrite, node_write, other_taints
from gpu_provision.planning.states import TO_BE_LABELLED, Key, Situation
from gpu_provision.planning.superseded import is_of, superseded
from gpu_provision.planning.upgrades import DRIVER, is_kept
from gpu_provision.planning.verdicts import NOT_RUN, VALIDATIONS, started_for, verdict_of, wanted_verdict
from gpu_provision.rollout.actions import Evict, Move


@dataclass(frozen=True, slots=True)
class Freed:
    """That a node loses its startup taint: the version of it that was looked at, and the taints that stay."""

    revision: str
    taints: tuple[Mapping[str, Any], ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Write labels of one node, and take the startup taint off in the same write if it is ``freed``."""

    key: Key
    ref: ObjectRef
    uid: str
    labels: tuple[tuple[str, str | None], ...]
    freed: Freed | None = None

    def patch(self) -> dict[str, Any]:
        """Return the merge patch. Taints are a list that others write to, so they are only of the looked-at version."""
        metadata: dict[str, Any] = {"uid": self.uid, "labels": dict(self.labels)}
        if self.freed is None:
            return {"metadata": metadata}
        taints = [dict(taint) for taint in self.freed.taints]
        return {"metadata": {**metadata, "resourceVersion": self.freed.revision}, "spec": {"taints": taints or None}}


@dataclass(frozen=True, slots=True)
class StartPod:
    """Start one validation pod, which names the life in ``verdict``; see `gpu_provision.planning.verdicts`."""

    key: Key
    ref: ObjectRef
    manifest: Manifest = field(compare=False)  # its name holds the digest of its content
    verdict: str


@dataclass(frozen=True, slots=True)
class HarvestPod:
    """Read what a finished validation pod printed, and put its result on record.

    ``cause`` is why the pod failed as its status says it: all that there is if no container ever started.
    """

    key: Key
    ref: ObjectRef
    uid: str
    verdict: str
    container: str
    passed: bool
    cause: str


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Delete a pod: a validation of other content or of another life, or a driver pod that starts over."""

    key: Key
    ref: ObjectRef
    uid: str


@dataclass(frozen=True, slots=True)
class MoveNode:
    """Take a node one state further in the rollout of its driver."""

    key: Key
    ref: ObjectRef
    move: Move


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


Step = LabelNode | StartPod | HarvestPod | RemovePod | MoveNode | EvictPod | ReadLog


def next_steps(
    seen: Situation, settled: Mapping[Key, NodeState], *, stale: Collection[str], harvested: Collection[str]
) -> Iterator[Step]:
    """Yield everything that can be done now, but for what a rollout of the driver does.

    Args:
        stale: Uids of validation pods that do not count, since an earlier run left them.
        harvested: Uids of validation pods whose result has been taken.
    """
    yield from _label_steps(seen, settled)
    yield from _attesting_steps(seen, settled)
    yield from _validation_steps(seen, settled, stale, harvested)


def _label_steps(seen: Situation, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    facts = {node.name: node for node in seen.observed.facts.nodes}
    targets = {target.name for target in seen.context.targets}
    leaving = {node.name for node in node_labels.leaving(seen.context)}
    for manifest in seen.desired.get("node_labels", ()):
        key = ("node_labels", manifest["metadata"]["name"])
        state, node = settled.get(key), facts.get(key[1])
        if node is None or (state is not None and state.state in _SETTLED):
            continue
        if node.name in leaving and (state is None or state.reason != TO_BE_LABELLED):
            continue  # the rollout has it
        write = node_write(manifest, node, seen.context.inventory)
        if node.name in targets and not labels.nfd_has_spoken(node.labels):
            write = NodeWrite({}, write.frees)  # the taint may be what keeps Node Feature Discovery off
        if not write.is_empty:
            yield _label(key, node, write)


def _attesting_steps(seen: Situation, settled: Mapping[Key, NodeState]) -> Iterator[Step]:
    manifests = seen.parts[attesting.NAME].single if attesting.NAME in seen.parts else {}
    for target in seen.context.targets:
        key = (attesting.NAME, target.name)
        state = settled.get(key)
        if target.facts and state and state.state is State.PROGRESSING and state.reason == attesting.TO_BE_TOLD:
            yield _label(key, target.facts, node_write(manifests[target.name], target.facts, seen.context.inventory))


def _label(key: Key, node: NodeFacts, write: NodeWrite) -> LabelNode:
    freed = Freed(node.revision, other_taints(node)) if write.frees else None
    ref = ObjectRef("v1", "Node", "", node.name)
    return LabelNode(key, ref, node.uid, tuple(sorted(write.labels.items())), freed)


def _validation_steps(
    seen: Situation, settled: Mapping[Key, NodeState], stale: Collection[str], harvested: Collection[str]
) -> Iterator[Step]:
    for key, pod in superseded(seen):
        yield from _removal(key, pod)
    targets = {target.name: target for target in seen.context.targets}
    for component in filter(VALIDATIONS.__contains__, seen.parts):
        for node, manifest in seen.parts[component].single.items():
            key = (component, node)
            state = settled.get(key)
            if state and state.state is State.READY and not state.reason:
                continue  # it has passed
            wanted = wanted_verdict(component, targets[node], manifest, seen.pods)
            live = next((pod for pod in seen.pods.get(key, ()) if is_of(manifest, pod)), None)
            if live is not None and verdict_of(live) != wanted and is_kept(settled.get((DRIVER, node))):
                continue  # none runs in its place
            if live is not None and (verdict_of(live) != wanted or _is_void(live, stale)):
                yield from _removal(key, live)
            elif live is not None and live["metadata"]["uid"] not in harvested:
                yield from _harvest(key, live, seen)
            elif state and state.state is State.PENDING and state.reason.startswith(NOT_RUN):
                yield StartPod(key, ref_of(manifest), started_for(wanted, manifest), wanted)


def _is_void(pod: Manifest, stale: Collection[str]) -> bool:
    return pod["metadata"]["uid"] in stale or pod_view.was_turned_away(pod)


_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})  # labels that are ready are as wanted


def _removal(key: Key, pod: Manifest) -> Iterator[Step]:
    if not pod["metadata"].get("deletionTimestamp"):
        yield RemovePod(key, ref_of(pod), pod["metadata"]["uid"])


def _harvest(key: Key, pod: Manifest, seen: Situation) -> Iterator[Step]:
    ended = pod_view.phase(pod) in {"Succeeded", "Failed"}
    if not ended or seen.observed.passed.get(key) == verdict_of(pod):
        return
    container = pod["spec"]["containers"][0]["name"]
    passed = pod_view.phase(pod) == "Succeeded"
    cause = "" if passed else pod_view.cause(pod)
    yield HarvestPod(key, ref_of(pod), pod["metadata"]["uid"], verdict_of(pod), container, passed, cause)
