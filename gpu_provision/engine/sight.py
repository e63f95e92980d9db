"""Snapshots of a fleet, again and again: what has not changed since the last one is not read anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from gpu_provision.engine.groups import Groups
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.observe import Declared, Seen, fleet_digest, node_from
from gpu_provision.rollout.snapshot import Node, Proof, Snapshot
from gpu_provision.rollout.workloads import budgets_of, claims_of

_Objects = dict[int, Manifest]
"""Objects by identity. Whoever holds them keeps their identities from being given to others."""


class _Known(NamedTuple):
    """A node as last read, and what it was read off besides its pods."""

    manifest: Manifest
    wish: Declared
    node: Node


@dataclass(slots=True)
class Sight:
    """Looks at one fleet; `observe` has the answers of `rollout.observe.observe`.

    Attributes:
        pods: Pods by node, in several scopes; their reader keeps them current.
    """

    pods: Sequence[Groups[str]]
    _budgets: _Objects = field(default_factory=dict)
    _claims: _Objects | None = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)
    _proofs: dict[str, Proof] = field(default_factory=dict)
    _known: dict[str, _Known] = field(default_factory=dict)
    _templates: list[Manifest] = field(default_factory=list)
    _target: str = ""

    def observe(
        self, declared: Mapping[str, Declared], seen: Seen, moved: Collection[str], *, now: float, previous: str = ""
    ) -> Snapshot:
        """Return the fleet as it is.

        Args:
            seen: What there is; pods are read off `pods`.
            moved: The nodes that have other pods than at the last look.
        """
        budgets, claims = _by_identity(seen.budgets), None if seen.claims is None else _by_identity(seen.claims)
        changed = {
            *moved,
            *self._where_budgets_changed(budgets),
            *self._where_answers_changed(seen.refusals),
            *_differing(self._proofs, seen.proofs),
            *(name for name, _ in (self._members() if _identities(claims) != _identities(self._claims) else ())),
        }
        self._budgets, self._claims = budgets, claims
        self._refusals, self._proofs = dict(seen.refusals), dict(seen.proofs)
        for name in changed:
            self._known.pop(name, None)
        target = self._target_of(declared)
        nodes = tuple(self._nodes(declared, seen))
        return Snapshot(now=now, target=target, previous=previous, nodes=nodes, is_rolling_back=previous == target)

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

    def _nodes(self, declared: Mapping[str, Declared], seen: Seen) -> Iterator[Node]:
        live = {node["metadata"]["name"]: node for node in seen.nodes}
        claims = claims_of(None if self._claims is None else self._claims.values())
        rules = (budgets_of(self._budgets.values()), claims, self._refusals, self._proofs)
        for name, wish in sorted(declared.items(), key=lambda item: item[1].position):
            if name not in live:
                continue
            known = self._known.get(name)
            if known is None or known.manifest is not live[name] or (known.wish is not wish and known.wish != wish):
                pods = [pod for group in self.pods for pod in group.members.get(name, ())]
                known = self._known[name] = _Known(live[name], wish, node_from(live[name], wish, pods, *rules))
            yield known.node


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yield the names that stand for another object than before."""
    return (name for name in before.keys() | now.keys() if before.get(name) is not now.get(name))


def _by_identity(objects: Iterable[Manifest]) -> _Objects:
    return {id(each): each for each in objects}


def _identities(objects: _Objects | None) -> frozenset[int] | None:
    return None if objects is None else frozenset(objects)
