"""The work queue of a stack: its request, overlaps that block it, the schedule of its runs, and backoff."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_provision.components.targets import node_pools
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.text import join_limited
from gpu_provision.operator.stack import FINALIZER, inventory_of, is_released, namespace_of
from gpu_provision.operator.status import Reason, StackObservation, StackProblem

# Age of a pending change before a run: the watch returns own writes late, and nodes join in groups.
SETTLE_SECONDS = 0.3
# Age of an edit before a run: it is no effect of an own write, but an editor may make several.
EDIT_SECONDS = 0.1
_NOT_YET_SECONDS = 1.0
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 5.0, 600.0
_FREE_REPAIRS = 3
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 1.0, 60.0
_FORGET_SECONDS = 120.0  # after so long without an edit, the repair count of an object is reset
_MAX_NAMED = 10


@dataclass(slots=True)
class Backoff:
    """Exponential backoff: each failure doubles the delay, a success resets it. Times are of a monotonic clock."""

    _failures: int = 0
    _due: float = 0.0

    def record_failure(self, now: float) -> None:
        """Double the delay until the next try."""
        self._due = now + _exponential_delay(self._failures, _FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        self._failures += 1

    def reset(self) -> None:
        """Reset the delay after a success."""
        self._failures, self._due = 0, 0.0

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next try."""
        return max(0.0, self._due - now)


def _exponential_delay(times: int, first: float, longest: float) -> float:
    return min(first * 2.0 ** min(times, 10), longest)


@dataclass(slots=True)
class EditConflictBackoff:
    """Counts repairs of each object, and delays further ones: two programs that fight over a field cause less load."""

    _repairs: dict[str, tuple[int, float]] = field(default_factory=dict)  # how many, and when the last one was

    def observe(self, lasting: Collection[str], edited: Collection[str], now: float) -> None:
        """Record the objects edited now. One in ``lasting`` that is edited no longer counts as repaired."""
        for name in set(lasting) - set(edited):
            self._repairs[name] = self._repairs.get(name, (0, now))[0] + 1, now
        self._repairs = {
            name: (repairs, at)
            for name, (repairs, at) in self._repairs.items()
            if name in edited or now - at < _FORGET_SECONDS
        }

    def delay(self, name: str) -> float:
        """Return the seconds before the next repair of an object."""
        repairs = self._repairs.get(name, (0, 0.0))[0] - _FREE_REPAIRS
        return _exponential_delay(repairs, _FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS) if repairs >= 0 else 0.0


@dataclass(slots=True)
class ReconcileScheduler:
    """Decides when a run begins, by pending changes and the result of the last run. Times are of a monotonic clock."""

    pending_changes: frozenset[str] = frozenset()  # changes that the last run left pending
    _since: dict[str, float] = field(default_factory=dict)
    _edited: frozenset[str] = frozenset()
    _reported: frozenset[str] = frozenset()
    _began_at: float = float("-inf")
    _ran_at: float = float("-inf")
    _backoff: Backoff = field(default_factory=Backoff)
    _edit_conflicts: EditConflictBackoff = field(default_factory=EditConflictBackoff)

    def observe(self, needs: Collection[str], now: float, *, edited: Collection[str] = ()) -> None:
        """Record pending changes; ``edited`` ones were applied before, and another client reverted them."""
        wanted = frozenset(needs)
        self._edit_conflicts.observe(self._edited & self._settled_needs(now), frozenset(edited), now)
        self._edited = frozenset(edited)
        self._reported &= self._edited
        late = wanted - self._edited if now - self._ran_at < SETTLE_SECONDS else frozenset[str]()
        self.pending_changes = (self.pending_changes | late) & wanted
        self._since = {need: self._since.get(need, now) for need in needs}

    def is_due(self, now: float) -> bool:
        """Whether a run is due: at once for new changes, after the backoff for changes that the last run left."""
        lasting = self._settled_needs(now)
        return bool(lasting - self.pending_changes) or bool(lasting and self._backoff.seconds_left(now) == 0.0)

    def new_edits(self, now: float) -> frozenset[str]:
        """Return the edits made during a run, each once, since a run may fail to repair an edit."""
        edits = self._unreported_edits()
        settled = frozenset(each for each in edits if self._age(each, now) >= self._delay(each, SETTLE_SECONDS))
        self._reported |= settled
        return settled

    def wait(self, now: float, *, is_running: bool) -> float:
        """Return the seconds until the next check without an event; infinity without pending changes."""
        if is_running:  # an edit preempts it; a run that may not end yet is checked again later
            waits = [self._delay(each, SETTLE_SECONDS) - self._age(each, now) for each in self._unreported_edits()]
            return min((wait if wait > 0.0 else _NOT_YET_SECONDS for wait in waits), default=float("inf"))
        left = self._backoff.seconds_left(now)
        return min(
            (
                left if need in self.pending_changes else max(0.0, self._settle_seconds(need) - self._age(need, now))
                for need in self._since
            ),
            default=float("inf"),
        )

    def on_start(self, now: float) -> None:
        """Record the beginning of a run."""
        self._began_at = now

    def on_finish(self, needs: Collection[str], now: float, *, succeeded: bool) -> None:
        """Record the end of a run, and the changes still pending; the run may have missed later ones."""
        before = {need for need in needs if self._since.get(need, now) <= self._began_at}
        missed = frozenset(needs) if succeeded else self._edited
        self.pending_changes, self._ran_at = frozenset(needs) - (missed - before), now
        if succeeded and not self.pending_changes:
            self._backoff.reset()
        else:
            self._backoff.record_failure(now)

    def on_preempt(self) -> None:
        """Record the end of a preempted run: its pending changes are new ones for the next run."""
        self.pending_changes = frozenset()

    def _unreported_edits(self) -> frozenset[str]:
        return self._edited - self._reported - self.pending_changes

    def _settled_needs(self, now: float) -> frozenset[str]:
        return frozenset(need for need in self._since if self._age(need, now) >= self._settle_seconds(need))

    def _age(self, need: str, now: float) -> float:
        return now - self._since.get(need, now)

    def _settle_seconds(self, need: str) -> float:
        return self._delay(need, EDIT_SECONDS) if need in self._edited else SETTLE_SECONDS

    def _delay(self, need: str, seconds: float) -> float:
        return max(seconds, self._edit_conflicts.delay(need))


@dataclass(frozen=True, slots=True)
class ReconcileRequest:
    """The desired state of one stack for its worker, and the problem that blocks it, if any."""

    stack: Manifest
    blocked: StackProblem | None = None

    @property
    def name(self) -> str:
        """Return the stack's name."""
        return str(self.stack["metadata"]["name"])

    @property
    def generation(self) -> int:
        """Return the stack's generation, which counts changes of the spec, not those of the status."""
        return int(self.stack["metadata"].get("generation", 0))

    @property
    def is_deleting(self) -> bool:
        """Whether the stack is being deleted."""
        return bool(self.stack["metadata"].get("deletionTimestamp"))

    def is_equivalent(self, other: ReconcileRequest) -> bool:
        """Whether another request for the stack asks for the same work."""
        one, two = (
            (each.stack["metadata"]["uid"], each.generation, each.is_deleting, each.blocked) for each in (self, other)
        )
        return one == two and not (self.is_deleting and is_released(self.stack) != is_released(other.stack))

    def observation(self, **values: Any) -> StackObservation:
        """Return the observation from which the stack's status is computed."""
        release = str((self.stack.get("spec") or {}).get("release", ""))
        return StackObservation(generation=self.generation, release=release, **values)


class _Claim(NamedTuple):
    """The GPU nodes and the namespace that one stack declares; the older one of two stacks keeps them."""

    since: str
    stack: str
    nodes: frozenset[str]
    namespace: str


@dataclass(slots=True)
class OverlapChecker:
    """Finds stacks with the same nodes or namespace; parses a stack or a node again only after a change.

    A deleted stack owns its nodes and its namespace until the finalizer is removed.
    """

    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)

    def find_overlaps(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, StackProblem]:
        """Return the problems of blocked stacks, by name. A blocked stack owns nothing."""
        self._nodes = {node["metadata"]["name"]: self._facts(node) for node in nodes}
        owners: list[_Claim] = []
        problems: dict[str, StackProblem] = {}
        for claim in sorted(self._claims(stacks)):
            if overlap := next(filter(None, (_overlap_message(owner, claim) for owner in owners)), ""):
                problems[claim.stack] = StackProblem(Reason.OVERLAP, overlap)
            else:
                owners.append(claim)
        return problems

    def _claims(self, stacks: Iterable[Manifest]) -> Iterator[_Claim]:
        facts = ClusterFacts(nodes=tuple(each for _, each in self._nodes.values()))
        known, self._inventories = self._inventories, {}
        for stack in stacks:
            metadata = stack["metadata"]
            if metadata.get("deletionTimestamp") and FINALIZER not in (metadata.get("finalizers") or ()):
                continue
            version = str(metadata["uid"]), int(metadata.get("generation", 0))
            with contextlib.suppress(Exception):  # the stack's worker reports such a bug
                inventory = known[version] if version in known else inventory_of(stack)[0]
                if inventory:
                    wanted = frozenset(name for name, pool in node_pools(inventory, facts).items() if pool.gpu)
                    namespace = namespace_of(stack) or inventory.cluster.namespace
                    yield _Claim(metadata["creationTimestamp"], metadata["name"], wanted, namespace)
                self._inventories[version] = inventory

    def _facts(self, node: Manifest) -> tuple[str, NodeFacts]:
        version, known = node["metadata"]["resourceVersion"], self._nodes.get(node["metadata"]["name"])
        return known if known and known[0] == version else (version, node_facts(node))


def _overlap_message(owner: _Claim, other: _Claim) -> str:
    """Return the message that an older stack owns nodes or the namespace of another one; empty without overlap."""
    if nodes := sorted(owner.nodes & other.nodes):
        named = join_limited(nodes, _MAX_NAMED)
        return f"stack {owner.stack} owns nodes that {other.stack} wants, too: {named}"
    if owner.namespace == other.namespace:
        way_out = "delete the younger stack, and create it again with another spec.cluster.namespace"
        return f"stack {owner.stack} owns the namespace {owner.namespace}, which {other.stack} wants, too: {way_out}"
    return ""
