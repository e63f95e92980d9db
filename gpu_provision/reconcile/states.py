"""The state of each component on each node, with deadlines: what waits, what is blocked, what is too late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision import components
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key, Situation, states
from gpu_provision.planning.upgrades import is_kept
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.situation import Look

SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})
_BROKEN = frozenset({State.FAILED, State.BLOCKED})


BUSY = "Insufficient nvidia.com/gpu"
"""How the scheduler says that other pods have all GPUs of a node."""

NOT_VALIDATED = "not validated yet: all GPUs of the node are in use"
"""Reason of a validation that waits for a free GPU; the node is in use, so this fails no run."""

_BUSY_SECONDS = 30

STEADY_SECONDS = 30.0
"""For how long something has to be ready before it gets all its time anew: in a crash loop it is so for moments."""


@dataclass(slots=True)
class Settler:
    """Remembers when each clock started, and what a node came to of which nothing has changed.

    Attributes:
        requires: Component -> the components that it requires and that are on.
        timeouts: Component -> seconds.
        rejected: (component, node) -> why the API server refused it, for good.
        states: What was settled last; another mapping once states come or go.
    """

    requires: Mapping[str, tuple[str, ...]]
    timeouts: Mapping[str, int]
    rejected: dict[Key, str] = field(default_factory=dict)
    states: dict[Key, NodeState] = field(default_factory=dict)
    _raw: dict[Key, NodeState] = field(default_factory=dict)
    _untimed: frozenset[Key] = frozenset()
    _taken: dict[Key, str] = field(default_factory=dict)
    _since: dict[Key, float] = field(default_factory=dict)
    _spent: dict[Key, float] = field(default_factory=dict)
    _due: dict[Key, float] = field(default_factory=dict)
    _overdue: dict[Key, str] = field(default_factory=dict)
    _settled_at: dict[Key, float] = field(default_factory=dict)

    def settle(
        self, raw: Mapping[Key, NodeState], now: float, *, untimed: Collection[Key] = ()
    ) -> dict[Key, NodeState]:
        """Return the states with waiting, blocking and deadlines applied. ``raw`` is in dependency order.

        Args:
            untimed: What somebody else keeps the time of, or what waits for its turn.
        """
        waiting = frozenset(untimed)
        changed = {*_changed(self._raw, raw), *(waiting ^ self._untimed)}
        self._raw, self._untimed = dict(raw), waiting
        if self.states.keys() != raw.keys():
            self.states = {key: self.states.get(key, state) for key, state in raw.items()}
            self._due = {key: due for key, due in self._due.items() if key in raw}
        self._settle_changed(changed, now)
        return self.states | _rejected_elsewhere(self.states, self._taken)

    def settle_some(
        self, raw: Mapping[Key, NodeState], names: Collection[str], now: float, *, untimed: Collection[Key] = ()
    ) -> tuple[Mapping[Key, NodeState], frozenset[str] | None]:
        """Return the settled states of nodes that have changed or have had their time, and which; None for all.

        Args:
            raw: The states of those that have changed, and of components as a whole; no other ones have come or gone.
            names: Those that have changed.
            untimed: As of `settle`.
        """
        waiting = frozenset(untimed)
        changed = {*_changed(self._raw, raw, are_all=False), *(waiting ^ self._untimed)}
        self._raw.update(raw)
        self._untimed = waiting
        nodes = self._settle_changed(changed, now).union(names)
        if elsewhere := _rejected_elsewhere(self.states, self._taken):
            return self.states | elsewhere, None
        return {key: self.states[key] for key in self._keys(nodes)}, frozenset(nodes - {""})

    def _settle_changed(self, changed: set[Key], now: float) -> set[str]:
        """Settle what has changed, what has had its time, and what the API server has refused; return where.

        What has changed of a component as a whole counts on every node, for that component and for those that require
        it; of these nodes the ones are returned that differ by it.
        """
        rejected = dict(self.rejected)  # a copy: steps add to it from their threads
        overdue = (key for key, due in self._due.items() if due < now)
        refused = (key for key, _ in rejected.items() ^ self._taken.items())
        self._taken = rejected
        changed = changed.union(overdue, refused)
        nodes, differing = {node for _, node in changed}, set[str]()
        everywhere = self._with_dependents(name for name, node in changed if not node)
        for key in self._raw if everywhere else self._keys(nodes):
            if key[1] in nodes or key[0] in everywhere:
                before, self.states[key] = self.states[key], self._settled(key, now)
                if self.states[key] is not before and self.states[key] != before:
                    differing.add(key[1])
        return nodes | differing

    def _with_dependents(self, names: Iterable[str]) -> set[str]:
        found = set(names)
        for component, required in self.requires.items():
            if not found.isdisjoint(required):
                found.add(component)
        return found

    def _keys(self, nodes: Collection[str]) -> list[Key]:
        """Return what there is on nodes, in dependency order."""
        keys = ((component, node) for node in nodes for component in self.requires)
        return [key for key in keys if key in self._raw]

    def _settled(self, key: Key, now: float) -> NodeState:
        self._due.pop(key, None)
        state, rejected = self._raw[key], self._taken
        if key in rejected:
            return replace(state, state=State.FAILED, reason=rejected[key])
        if state.state in SETTLED:
            self._overdue.pop(key, None)
            self._pause(key, now)
            self._settled_at.setdefault(key, now)
            return state
        if (waiting := _waiting(state, self._required(key))) is not None:
            self._pause(key, now)
            return waiting
        if key in self._untimed:
            self._pause(key, now)
            return state
        return self._timed(key, state, now)

    def _required(self, key: Key) -> dict[str, NodeState]:
        (component, node), known = key, self.states
        required = {}
        for name in self.requires.get(component, ()):
            for found in (known.get((name, "")), known.get((name, node))):
                if found is None or is_kept(found):  # previous content does what is asked of it, too
                    continue
                if name not in required or found.state is not State.READY or found.reason:
                    required[name] = found
        shared = known.get((component, "")) if node else None
        return required | ({component: shared} if shared else {})

    def _pause(self, key: Key, now: float) -> None:
        """Stop a clock without forgetting it: a requirement that comes and goes must not grant time for ever."""
        if key in self._since:
            self._spent[key] = now - self._since.pop(key)

    def _timed(self, key: Key, state: NodeState, now: float) -> NodeState:
        if now - self._settled_at.pop(key, now) >= STEADY_SECONDS:
            self._spent.pop(key, None)
        since = self._since.setdefault(key, now - self._spent.pop(key, 0.0))
        busy, limit = BUSY in state.reason, self.timeouts.get(key[0], _DEFAULT_SECONDS)
        due = since + (min(limit, _BUSY_SECONDS) if busy else limit)
        if now <= due and (busy or key not in self._overdue):
            self._due[key] = due
            return state
        if busy:
            return replace(state, state=State.READY, reason=NOT_VALIDATED)
        reason = self._overdue.setdefault(key, f"{state.reason} (not ready after {limit} s)")
        return replace(state, state=State.FAILED, reason=reason)

    def next_deadline(self, now: float) -> float:
        """Return in how many seconds the next clock runs out, at most 30."""
        return min([_LONGEST_WAIT, *(max(due - now, 0.0) + _JUST_AFTER for due in self._due.values())])


def _waiting(state: NodeState, required: Mapping[str, NodeState]) -> NodeState | None:
    """Return the state of what cannot go on, because of what it requires; None if it can."""
    broken = next((name for name, found in required.items() if found.state in _BROKEN), "")
    if broken:
        return replace(state, state=State.BLOCKED, reason=f"needs {broken}, which is not ready here")
    if waits := [name for name, found in required.items() if found.state is not State.READY]:
        return replace(state, state=State.PENDING, reason=f"waits for {', '.join(waits)}")
    if any(found.reason == NOT_VALIDATED for found in required.values()):
        return replace(state, state=State.READY, reason=NOT_VALIDATED)
    return None


def _changed(before: Mapping[Key, NodeState], now: Mapping[Key, NodeState], *, are_all: bool = True) -> Iterator[Key]:
    """Yield what is not as it was. Most states are the very same as before, which costs less to see."""
    others = [key for key, state in now.items() if before.get(key) is not state]
    yield from (key for key in others if before.get(key) != now[key])
    if are_all:
        yield from before.keys() - now.keys()


def _rejected_elsewhere(settled: Mapping[Key, NodeState], rejected: Mapping[Key, str]) -> dict[Key, NodeState]:
    """What was refused on nodes that have no state of their own, such as the labels of a node without a GPU."""
    return {
        (component, node): NodeState(component=component, node=node, state=State.FAILED, reason=reason)
        for (component, node), reason in rejected.items()
        if (component, node) not in settled
    }


def settler_of(reading: Reading) -> Settler:
    """Return a settler with the requirements and deadlines of a reading's components."""
    inventory = reading.context.inventory
    return Settler(
        requires=components.requirements(inventory),
        timeouts={
            component.name: getattr(component.spec(inventory), "timeout", _DEFAULT_SECONDS)
            for component in components.COMPONENTS
            if component.name in reading.desired
        },
    )


_DEFAULT_SECONDS = 300
_LONGEST_WAIT, _JUST_AFTER = 30.0, 0.05


@dataclass(slots=True)
class Standing:
    """Has the answers of `planning.states.states` for the looks of one run.

    Attributes:
        all: Every state, in dependency order; another mapping once others come or go.
    """

    all: dict[Key, NodeState] = field(default_factory=dict)

    @property
    def ready(self) -> dict[Key, NodeState]:
        """What was ready when it was judged last."""
        return {key: state for key, state in self.all.items() if state.state is State.READY}

    @property
    def unfinished(self) -> set[str]:
        """The nodes on which something was not ready when it was judged last, or ready with a reservation."""
        return {node for (_, node), state in self.all.items() if state.state is not State.READY or state.reason}

    def copy(self) -> Standing:
        """Return one that goes on from here."""
        return Standing(dict(self.all))

    def of(self, names: Collection[str], seen: Situation) -> dict[Key, NodeState]:
        """Return the states of components as a whole, and on some nodes, in dependency order."""
        keys = ((component, name) for component in seen.desired for name in ("", *names))
        return {key: self.all[key] for key in keys if key in self.all}

    def take(self, look: Look) -> tuple[Mapping[Key, NodeState], frozenset[str] | None]:
        """Judge what has changed; return the states that were judged, and of which nodes: all for None."""
        known = {node: self._known(node, others, look.part) for node, others in look.pods.items()}
        found, names = states(look.part, known), look.names
        if names is None:
            self.all = found
            return found, None
        components = tuple(look.seen.desired)
        keys = ((component, name) for component in components for name in (*names, ""))
        if all((key in self.all) == (key in found) for key in keys):
            self.all.update(found)
            return found, names
        self.all = _in_order({key: self.all[key] for key in self.all if key[1] not in names} | found, look.seen)
        return self.all, None

    def _known(self, node: str, others: Collection[str], seen: Situation) -> dict[str, NodeState]:
        """Return the states of what DaemonSets have on a node where nothing but pods of others has changed."""
        parts = ((name, part) for name, part in seen.parts.items() if name not in others)
        keys = ((name, node) for name, part in parts if part.daemonsets and node not in part.single)
        return {key[0]: self.all[key] for key in keys if key in self.all}


def _in_order(found: Mapping[Key, NodeState], seen: Situation) -> dict[Key, NodeState]:
    """Return states in dependency order, those of nodes that leave last."""
    places = {name: place for place, name in enumerate(seen.desired)}

    def place(key: Key) -> tuple[bool, int, str]:
        return found[key].state is State.LEAVING, places[key[0]], key[1]

    return {key: found[key] for key in sorted(found, key=place)}
