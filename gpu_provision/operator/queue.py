"""The work queue of a stack: its request, overlaps that block it, when a run begins, and backoff."""

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

# How long a need has to last: the effect of our own writes takes a moment to come back, and nodes join in crowds.
SETTLE_SECONDS = 0.3
# How long an edit has to last between two runs: it is no effect of a run, but an editor may make several.
EDIT_SECONDS = 0.1
_NOT_YET_SECONDS = 1.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 5.0, 600.0
_FREE_REPAIRS = 3
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 60.0
_FORGET_SECONDS = 120.0  # without an edit, after which the repairs of an object are forgotten
_MOST_NAMED = 10


@dataclass(slots=True)
class Backoff:
    """Each failure doubles the time until the next try; a success forgets them. Times are of a monotonic clock."""

    _failures: int = 0
    _due: float = 0.0

    def failed(self, now: float) -> None:
        """Record a failure."""
        self._due = now + _doubled(self._failures, _FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._failures += 1

    def succeeded(self) -> None:
        """Forget all failures."""
        self._failures, self._due = 0, 0.0

    def left(self, now: float) -> float:
        """Return the seconds until the next try."""
        return max(0.0, self._due - now)


def _doubled(times: int, first: float, longest: float) -> float:
    return min(first * 2.0 ** min(times, 10), longest)


@dataclass(slots=True)
class EditConflictBackoff:
    """Counts repairs of each object. Two programs that want an object otherwise do not keep the cluster busy."""

    _repairs: dict[str, tuple[int, float]] = field(default_factory=dict)  # how many, and when the last one was

    def look(self, lasting: Collection[str], edited: Collection[str], now: float) -> None:
        """Record the objects that are edited now; what was edited for long enough and no longer is was repaired."""
        for name in set(lasting) - set(edited):
            self._repairs[name] = self._repairs.get(name, (0, now))[0] + 1, now
        self._repairs = {
            name: (repairs, at)
            for name, (repairs, at) in self._repairs.items()
            if name in edited or now - at < _FORGET_SECONDS
        }

    def delay(self, name: str) -> float:
        """Return for how many seconds to leave an edit of an object alone."""
        repairs = self._repairs.get(name, (0, 0.0))[0] - _FREE_REPAIRS
        return _doubled(repairs, _FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS) if repairs >= 0 else 0.0


@dataclass(slots=True)
class ReconcileScheduler:
    """Compares pending changes with what the last run could not do. Times are of a monotonic clock."""

    undone: frozenset[str] = frozenset()  # what the last run has left
    _since: dict[str, float] = field(default_factory=dict)
    _edited: frozenset[str] = frozenset()
    _told: frozenset[str] = frozenset()
    _began_at: float = float("-inf")
    _ran_at: float = float("-inf")
    _backoff: Backoff = field(default_factory=Backoff)
    _edit_conflicts: EditConflictBackoff = field(default_factory=EditConflictBackoff)

    def look(self, needs: Collection[str], now: float, *, edited: Collection[str] = ()) -> None:
        """Record pending changes; those that are ``edited`` were made once, and were undone since."""
        wanted = frozenset(needs)
        self._edit_conflicts.look(self._edited & self._lasting(now), frozenset(edited), now)
        self._edited = frozenset(edited)
        self._told &= self._edited
        late = wanted - self._edited if now - self._ran_at < SETTLE_SECONDS else frozenset[str]()
        self.undone = (self.undone | late) & wanted
        self._since = {need: self._since.get(need, now) for need in needs}

    def is_due(self, now: float) -> bool:
        """Whether to run: at once for what the last run did not leave undone, for the rest after a while."""
        lasting = self._lasting(now)
        return bool(lasting - self.undone) or bool(lasting and self._backoff.left(now) == 0.0)

    def new_edits(self, now: float) -> frozenset[str]:
        """Return what was edited during a run; each edit is returned once, as a run may not get it undone."""
        news = frozenset(each for each in self._news() if self._age(each, now) >= self._delay(each, SETTLE_SECONDS))
        self._told |= news
        return news

    def wait(self, now: float, *, is_running: bool) -> float:
        """Return in how many seconds to ask again although nothing has happened; infinity without pending changes."""
        if is_running:  # to end it for an edit; one that may not end yet is asked again later
            waits = [self._delay(each, SETTLE_SECONDS) - self._age(each, now) for each in self._news()]
            return min((wait if wait > 0.0 else _NOT_YET_SECONDS for wait in waits), default=float("inf"))
        left = self._backoff.left(now)
        return min(
            (
                left if need in self.undone else max(0.0, self._settling(need) - self._age(need, now))
                for need in self._since
            ),
            default=float("inf"),
        )

    def on_start(self, now: float) -> None:
        """Note the beginning of a run."""
        self._began_at = now

    def on_finish(self, needs: Collection[str], now: float, *, is_well: bool) -> None:
        """Note the end of a run, and what is still to be done: what came up meanwhile, it may not have seen."""
        before = {need for need in needs if self._since.get(need, now) <= self._began_at}
        missed = frozenset(needs) if is_well else self._edited
        self.undone, self._ran_at = frozenset(needs) - (missed - before), now
        if is_well and not self.undone:
            self._backoff.succeeded()
        else:
            self._backoff.failed(now)

    def on_preempt(self) -> None:
        """Note the end of a run that was ended early: it has left nothing undone, it has not come to it."""
        self.undone = frozenset()

    def _news(self) -> frozenset[str]:
        return self._edited - self._told - self.undone

    def _lasting(self, now: float) -> frozenset[str]:
        return frozenset(need for need in self._since if self._age(need, now) >= self._settling(need))

    def _age(self, need: str, now: float) -> float:
        return now - self._since.get(need, now)

    def _settling(self, need: str) -> float:
        return self._delay(need, EDIT_SECONDS) if need in self._edited else SETTLE_SECONDS

    def _delay(self, need: str, seconds: float) -> float:
        return max(seconds, self._edit_conflicts.delay(need))


@dataclass(frozen=True, slots=True)
class ReconcileRequest:
    """The desired state of one stack as handed to its worker, and why it may not be worked on, if so."""

    stack: Manifest
    blocked: StackProblem | None = None

    @property
    def name(self) -> str:
        """Return the stack's name."""
        return str(self.stack["metadata"]["name"])

    @property
    def generation(self) -> int:
        """Return the stack's generation; it counts changes of what is declared, not those of the status."""
        return int(self.stack["metadata"].get("generation", 0))

    @property
    def is_deleting(self) -> bool:
        """Whether the stack is being deleted."""
        return bool(self.stack["metadata"].get("deletionTimestamp"))

    def is_equivalent(self, other: ReconcileRequest) -> bool:
        """Whether another request for the stack changes nothing for the work on this one."""
        one, two = (
            (each.stack["metadata"]["uid"], each.generation, each.is_deleting, each.blocked) for each in (self, other)
        )
        return one == two and not (self.is_deleting and is_released(self.stack) != is_released(other.stack))

    def observation(self, **told: Any) -> StackObservation:
        """Return the input of the stack's status."""
        release = str((self.stack.get("spec") or {}).get("release", ""))
        return StackObservation(generation=self.generation, release=release, **told)


class _Claim(NamedTuple):
    """The GPU nodes and the namespace that one stack wants; the older one of two stacks keeps them."""

    since: str
    stack: str
    nodes: frozenset[str]
    namespace: str


@dataclass(slots=True)
class OverlapChecker:
    """Compares all stacks of a cluster; reads a stack or a node again only when it has changed.

    A stack that is being removed still owns what it had: another one begins when it is gone.
    """

    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)

    def look(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, StackProblem]:
        """Return why stacks may not be worked on, by name. One that has to give way owns nothing."""
        self._nodes = {node["metadata"]["name"]: self._facts(node) for node in nodes}
        owners: list[_Claim] = []
        found: dict[str, StackProblem] = {}
        for claim in sorted(self._claims(stacks)):
            if overlap := next(filter(None, (_overlap(owner, claim) for owner in owners)), ""):
                found[claim.stack] = StackProblem(Reason.OVERLAP, overlap)
            else:
                owners.append(claim)
        return found

    def _claims(self, stacks: Iterable[Manifest]) -> Iterator[_Claim]:
        facts = ClusterFacts(nodes=tuple(each for _, each in self._nodes.values()))
        known, self._inventories = self._inventories, {}
        for stack in stacks:
            metadata = stack["metadata"]
            if metadata.get("deletionTimestamp") and FINALIZER not in (metadata.get("finalizers") or ()):
                continue
            version = str(metadata["uid"]), int(metadata.get("generation", 0))
            with contextlib.suppress(Exception):  # a bug about one stack, which its worker meets and reports
                inventory = known[version] if version in known else inventory_of(stack)[0]
                if inventory:
                    wanted = frozenset(name for name, pool in node_pools(inventory, facts).items() if pool.gpu)
                    namespace = namespace_of(stack) or inventory.cluster.namespace
                    yield _Claim(metadata["creationTimestamp"], metadata["name"], wanted, namespace)
                self._inventories[version] = inventory

    def _facts(self, node: Manifest) -> tuple[str, NodeFacts]:
        version, known = node["metadata"]["resourceVersion"], self._nodes.get(node["metadata"]["name"])
        return known if known and known[0] == version else (version, node_facts(node))


def _overlap(owner: _Claim, other: _Claim) -> str:
    """Return what an older stack owns of what another one wants: nodes, or the namespace, where names are the same."""
    if nodes := sorted(owner.nodes & other.nodes):
        named = join_limited(nodes, _MOST_NAMED)
        return f"stack {owner.stack} owns nodes that {other.stack} wants, too: {named}"
    if owner.namespace == other.namespace:
        way_out = "delete the younger stack, and create it again with another spec.cluster.namespace"
        return f"stack {owner.stack} owns the namespace {owner.namespace}, which {other.stack} wants, too: {way_out}"
    return ""
