"""States of the driver while a rollout goes on, read off what its machine has decided. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, assert_never

from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.upgrade import UpgradePolicy
from gpu_provision.planning.states import TO_BE_LABELLED, Key
from gpu_provision.planning.upgrades import AT_WORK, DRIVER, KEEPS, STAYS, is_kept
from gpu_provision.planning.verdicts import FAILED_WITH
from gpu_provision.rollout import needs
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.leaving import is_free
from gpu_provision.rollout.machine import Decision, Phase
from gpu_provision.rollout.snapshot import Node, Proof, Snapshot
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_VALIDATION = "driver_validation"
_REST = frozenset({UpgradeState.UNKNOWN, UpgradeState.DONE})


class Word(NamedTuple):
    """What the machine says of one node."""

    phase: Phase
    waits: str
    failure: str | None


def word(decision: Decision, node: str) -> Word:
    """Return what a decision says of a node."""
    return Word(decision.phase, decision.waits.get(node, ""), decision.failures.get(node))


def replaced(nodes: Mapping[str, Node], now: Mapping[str, Node]) -> frozenset[str]:
    """Return the nodes that have changed between two looks, come or gone."""
    others = (name for name, node in now.items() if nodes.get(name) is not node)
    return frozenset(chain(others, nodes.keys() - now.keys()))


def differing(changed: frozenset[str], now: Collection[str], before: Decision, decision: Decision) -> frozenset[str]:
    """Return the nodes that have changed between two looks, and those of which the later decision says another word.

    Args:
        changed: See `replaced`.
        now: All nodes that there are.
    """
    if before.phase is not decision.phase:
        return changed.union(now)
    waits, failures = _others(before.waits, decision.waits), _others(before.failures, decision.failures)
    return changed.union(waits, failures)


def _others(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the nodes of which something else is said than before, or nothing any more."""
    yield from (name for name, text in now.items() if before.get(name) != text)
    yield from before.keys() - now.keys()


def of_driver(node: Node, said: Word, raw: NodeState) -> NodeState:
    """Return the state of a driver that the rollout looks after, and how far it is.

    A driver that has yet to prove itself is ready here, since its proof requires that; see `until_proven`.
    """
    return replace(_state(node, said, raw), step=node.labels.get(upgrade.STATE, ""))


def of_leaving(node: Node, said: Word, raw: NodeState, policy: UpgradePolicy) -> NodeState:
    """Return the state of a node that leaves: with its labels to be written once nothing on it would suffer."""
    step = node.labels.get(upgrade.STATE, "")
    if node.state is UpgradeState.FAILED and said.failure is not None:
        return replace(raw, state=State.FAILED, reason=f"{STAYS}: {said.failure}", step=step)
    if node.state in EARLY | LATE | {UpgradeState.FAILED}:
        return _progressing(raw, node, said, step=step)
    if is_free(node) and not needs.is_marked(node):
        return replace(raw, state=State.PROGRESSING, reason=TO_BE_LABELLED)
    if not policy.auto_upgrade or node.labels.get(upgrade.SKIP) == "true" or said.phase is Phase.CLOSED:
        return replace(raw, state=State.READY, reason=f"{STAYS}: {said.waits}")
    if said.phase in {Phase.PAUSED, Phase.HELD}:
        return replace(raw, state=State.BLOCKED, reason=f"{STAYS}: {said.waits}")
    return replace(raw, state=State.PROGRESSING, reason=f"waits: {said.waits}" if said.waits else "is about to leave")


def proofs(raw: Mapping[Key, NodeState]) -> dict[str, Proof]:
    """Return what validation says of the driver that each node has now; nothing where it has not ended."""
    found = ((node, state) for (component, node), state in raw.items() if component == _VALIDATION and node)
    ended = ((node, state) for node, state in found if _has_passed(state) or state.state is State.FAILED)
    return {
        node: Proof(passed=_has_passed(state), reason=state.reason.removeprefix(FAILED_WITH)) for node, state in ended
    }


def _has_passed(state: NodeState) -> bool:
    return state.state is State.READY and not state.reason


def until_proven(snapshot: Snapshot, decision: Decision, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
    """Return the states of ready drivers whose nodes are still to be given back."""
    found = ((node, settled.get((DRIVER, node.name))) for node in snapshot.nodes if node.state in LATE)
    return {
        (DRIVER, node.name): _progressing(state, node, word(decision, node.name))
        for node, state in found
        if state is not None and state.state is State.READY
    }


def untimed(nodes: Iterable[Node]) -> frozenset[Key]:
    """Return the drivers whose time the rollout keeps, or that wait for their turn."""
    ours = EARLY | LATE | {UpgradeState.UPGRADE_REQUIRED}
    return frozenset((DRIVER, node.name) for node in nodes if node.state in ours or needs.why(node))


def _state(node: Node, said: Word, raw: NodeState) -> NodeState:
    if node.state is UpgradeState.FAILED:
        return _failed(said, raw)
    if node.state is UpgradeState.UPGRADE_REQUIRED:
        return _waiting(node, said, raw)
    if node.state in EARLY | LATE:
        return replace(raw, state=State.READY, reason="") if _serves(node) else _progressing(raw, node, said)
    if node.state in _REST:
        return replace(raw, state=State.READY, reason="") if _rests(node, raw) else raw
    if raw.state is State.READY:
        return raw
    return replace(raw, state=State.BLOCKED, reason=f"{KEEPS}: {said.waits}")


def _failed(said: Word, raw: NodeState) -> NodeState:
    if said.failure is None:
        return replace(raw, state=State.PROGRESSING, reason="its upgrade failed, and is tried once more")
    return replace(raw, state=State.FAILED, reason=said.failure)


def _waiting(node: Node, said: Word, raw: NodeState) -> NodeState:
    """Return the state of a node that has not started: will it, in this run, and if not, is that as it should be?"""
    is_between = node.driver is None or node.driver.is_terminating
    wait = said.waits
    if is_kept(raw) or (is_between and said.phase is not Phase.ROLLING):
        return raw
    match said.phase:
        case Phase.CLOSED:
            return replace(raw, state=State.READY, reason=f"{KEEPS}: {wait}")
        case Phase.PAUSED | Phase.HELD:
            return replace(raw, state=State.BLOCKED, reason=f"{KEEPS}: {wait}")
        case Phase.ROLLING | Phase.SOAKING | Phase.FAILED | Phase.DONE:
            return replace(raw, state=State.PROGRESSING, reason=f"waits: {wait}" if wait else "is about to start")
        case _:
            assert_never(said.phase)


def _progressing(state: NodeState, node: Node, said: Word, *, step: str = "") -> NodeState:
    reason = said.waits or f"is in {node.state.value}"
    return replace(state, state=State.PROGRESSING, reason=reason, step=step)


def _serves(node: Node) -> bool:
    """Whether what needs the driver on a node can go on."""
    return node.state in LATE and needs.is_current(node) and node.driver is not None and node.driver.is_ready


def _rests(node: Node, raw: NodeState) -> bool:
    """Whether a node is over with it although the watch may not have shown our last write yet."""
    ready = node.driver is not None and node.driver.is_ready and needs.is_current(node)
    return ready and raw.reason.startswith(AT_WORK)
