"""Snapshots of the fleet and decisions kept current, and the driver's states that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, assert_never

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.states import TO_BE_LABELLED, Key
from gpu_provision.planning.upgrades import AT_WORK, DRIVER, KEEPS, STAYS, is_kept
from gpu_provision.planning.validation import FAILED_WITH
from gpu_provision.reconcile.situation import Groups
from gpu_provision.rollout import needs
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.actions import Turn
from gpu_provision.rollout.leaving import is_free
from gpu_provision.rollout.observe import Declared, Seen, budgets_of, claims_of, fleet_digest, node_from
from gpu_provision.rollout.snapshot import Domain, Node, Proof, Snapshot
from gpu_provision.rollout.state_machine import Decision, Phase, turn
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_Objects = dict[int, Manifest]
"""Objects by identity. Whoever holds them keeps their identities from being given to others."""


@dataclass(slots=True)
class Sight:
    """Looks at one fleet; `observe` has the answers of `rollout.observe.observe`.

    Attributes:
        nodes: Nodes by name; their reader keeps them current.
        pods: The same of pods by node, in several scopes.
    """

    nodes: Groups[str]
    pods: Sequence[Groups[str]]
    _declared: Mapping[str, Declared] = field(default_factory=dict)
    _budgets: _Objects = field(default_factory=dict)
    _claims: _Objects | None = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)
    _proofs: dict[str, Proof] = field(default_factory=dict)
    _known: dict[str, Node] = field(default_factory=dict)  # in the order of the inventory
    _templates: list[Manifest] = field(default_factory=list)
    _target: str = ""

    def observe(
        self, declared: Mapping[str, Declared], seen: Seen, moved: Collection[str], *, now: float, previous: str = ""
    ) -> Snapshot:
        """Return the fleet as it is.

        Args:
            declared: The same mapping as at the last look if nothing else is declared.
            seen: What there is; nodes and pods are read off `nodes` and `pods`.
            moved: The nodes that are not as at the last look, or have other pods.
        """
        others = self._where_wishes_changed(declared)
        budgets, claims = _by_identity(seen.budgets), None if seen.claims is None else _by_identity(seen.claims)
        changed = {
            *moved,
            *others,
            *self._where_budgets_changed(budgets),
            *self._where_answers_changed(seen.refusals),
            *_differing(self._proofs, seen.proofs),
            *(name for name, _ in (self._members() if _identities(claims) != _identities(self._claims) else ())),
        }
        self._budgets, self._claims = budgets, claims
        self._refusals, self._proofs = dict(seen.refusals), dict(seen.proofs)
        if others:
            self._target = self._target_of(declared)
        self._read(changed, declared)
        nodes, target = tuple(self._known.values()), self._target
        return Snapshot(now=now, target=target, previous=previous, nodes=nodes, is_rolling_back=previous == target)

    def _where_wishes_changed(self, declared: Mapping[str, Declared]) -> frozenset[str]:
        before, self._declared = self._declared, declared
        if before is declared:
            return frozenset()
        return frozenset(name for name in _differing(before, declared) if before.get(name) != declared.get(name))

    def _members(self) -> Iterator[tuple[str, tuple[Manifest, ...]]]:
        return chain.from_iterable(group.members.items() for group in self.pods)

    def _where_budgets_changed(self, budgets: _Objects) -> Iterator[str]:
        both = {**self._budgets, **budgets}
        namespaces = {both[key]["metadata"].get("namespace", "") for key in self._budgets.keys() ^ budgets.keys()}
        if not namespaces:
            return
        for name, pods in self._members():
            if any(pod["metadata"].get("namespace", "") in namespaces for pod in pods):
                yield name

    def _where_answers_changed(self, refusals: Mapping[str, str]) -> Iterator[str]:
        uids = {uid for uid, _ in self._refusals.items() ^ refusals.items()}
        if not uids:
            return
        for name, pods in self._members():
            if any(pod["metadata"]["uid"] in uids for pod in pods):
                yield name

    def _target_of(self, declared: Mapping[str, Declared]) -> str:
        templates = [wish.template for wish in declared.values() if wish.template is not None]
        if not self._target or templates != self._templates:
            self._templates, self._target = templates, fleet_digest(declared)
        return self._target

    def _read(self, changed: Iterable[str], declared: Mapping[str, Declared]) -> None:
        """Read nodes again, and put them in order if one has come or has another place."""
        claims = claims_of(None if self._claims is None else self._claims.values())
        rules = (budgets_of(self._budgets.values()), claims, self._refusals, self._proofs)
        is_in_order = True
        for name in changed:
            wish, live = declared.get(name), self.nodes.members.get(name)
            if wish is None or not live:
                self._known.pop(name, None)
                continue
            pods = [pod for group in self.pods for pod in group.members.get(name, ())]
            before, self._known[name] = self._known.get(name), node_from(live[0], wish, pods, *rules)
            is_in_order &= before is not None and before.position == wish.position
        if not is_in_order:
            order = sorted(declared, key=lambda name: declared[name].position)
            self._known = {name: self._known[name] for name in order if name in self._known}


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yield the names that stand for another object than before."""
    yield from (name for name, each in now.items() if before.get(name) is not each)
    yield from before.keys() - now.keys()


def _by_identity(objects: Iterable[Manifest]) -> _Objects:
    return {id(each): each for each in objects}


def _identities(objects: _Objects | None) -> frozenset[int] | None:
    return None if objects is None else frozenset(objects)


class _Waiting(NamedTuple):
    node: Node
    domain: Domain
    is_soaking: bool
    turn: Turn


@dataclass(slots=True)
class Turns:
    """Has the answers of `rollout.turns.turn`. A turn without actions holds until its own time is over."""

    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def __call__(self, node: Node, domain: Domain, now: float, *, is_soaking: bool = False) -> Turn:
        """Return what a node does next."""
        known = self._waiting.get(node.name)
        is_alike = known and known.node is node and known.domain is domain and known.is_soaking is is_soaking
        if known and is_alike and now < known.turn.until:
            return known.turn
        found = turn(node, domain, now, is_soaking=is_soaking)
        if found.actions:
            self._waiting.pop(node.name, None)
        else:
            self._waiting[node.name] = _Waiting(node, domain, is_soaking, found)
        return found


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
