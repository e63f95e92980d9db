"""Snapshots of a fleet, again and again: what has not changed since the last one is not read anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gpu_provision.engine.groups import Groups
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.observe import Declared, Seen, fleet_digest, node_from
from gpu_provision.rollout.snapshot import Node, Proof, Snapshot
from gpu_provision.rollout.workloads import budgets_of, claims_of

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
        """Read nodes anew, and put them in order if one has come or has another place."""
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
