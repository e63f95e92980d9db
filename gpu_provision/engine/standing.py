"""Where components stand, again and again: only nodes of which something has changed are judged again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpu_provision.engine.view import Look
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key, Situation, states


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
