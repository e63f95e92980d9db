"""What containers that crash say while they are waited for: their logs, read once for each restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_provision.cluster.client import Cluster
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.diagnose.failures import in_words
from gpu_provision.diagnose.pods import Crash
from gpu_provision.engine.actions import ReadLog
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key, Situation
from gpu_provision.rollout.replacing import NOT_READY

LOG_LINES = 30
MOST_LOGS = 20
"""Pods of one component whose logs are read: a fleet-wide failure has one cause, and the first ones tell it."""

_CONCERNED = frozenset({State.PROGRESSING, State.FAILED})


class Said(NamedTuple):
    """The last lines of a container that ended by itself, and the name of its pod."""

    pod: str
    crash: Crash
    lines: tuple[str, ...]


@dataclass(slots=True)
class Crashes:
    """Reads logs through steps, so that nothing waits for them.

    What a pod said stands until its log has been read after the next restart.

    Attributes:
        nodes: Where containers have ended by themselves; empty for a pod of a Deployment.
    """

    cluster: Cluster
    nodes: set[str] = field(default_factory=set)
    _asked: dict[str, dict[str, int]] = field(default_factory=dict)  # component -> uid -> restarts
    _said: dict[str, Said] = field(default_factory=dict)  # by uid of the pod; written by threads of steps
    _alike: dict[tuple[str, str], Said] = field(default_factory=dict)  # by component and how its container ended

    def unread(self, states: Mapping[Key, NodeState], seen: Situation) -> Iterator[ReadLog]:
        """Yield a step for each container that has ended by itself since its log was asked for.

        Args:
            states: Those that have changed, or all.
        """
        for key, pod, crash in _crashing(states, seen):
            self.nodes.add(key[1])
            asked, uid = self._asked.setdefault(key[0], {}), pod["metadata"]["uid"]
            if asked.get(uid, -1) < crash.restarts and (uid in asked or len(asked) < MOST_LOGS):
                asked[uid] = crash.restarts
                yield ReadLog(key, ref_of(pod), uid, crash)

    def read(self, step: ReadLog) -> None:
        """Read one log; one that cannot be read says nothing."""
        crash = step.crash
        try:
            lines = self.cluster.log(step.ref, crash.container, lines=LOG_LINES, previous=crash.is_over)
        except ProvisionError:
            return
        if any(map(str.strip, lines)):
            self._said[step.uid] = self._alike[step.key[0], str(crash)] = Said(step.ref.name, crash, lines)

    def told(self, states: Mapping[Key, NodeState], seen: Situation) -> Mapping[Key, NodeState]:
        """Return the states with what crashed containers said in place of how often they were started again."""
        known = {key: _with(states[key], pod, said) for key, pod, said in self._known(states, seen)}
        return {**states, **known} if known else states

    def said_of(self, states: Mapping[Key, NodeState], seen: Situation) -> dict[Key, Said]:
        """Return what the pods that states are about have said."""
        return {key: said for key, _, said in self._known(states, seen)}

    def _known(self, states: Mapping[Key, NodeState], seen: Situation) -> Iterator[tuple[Key, Manifest, Said]]:
        for key, pod, crash in _crashing(states, seen) if self._said else ():
            uid, alike = pod["metadata"]["uid"], self._alike.get((key[0], str(crash)))
            said = self._said.get(uid) if uid in self._asked.get(key[0], {}) else alike
            if said:
                yield key, pod, said


def pods_of(state: NodeState, seen: Situation) -> Iterator[Manifest]:
    """Yield the pods that a state is about: a component's on a node, or those of its Deployments, wherever they are."""
    if state.node:
        yield from seen.pods.get((state.component, state.node), ())
        return
    for (component, _), pods in seen.pods.items():
        yield from (pod for pod in pods if component == state.component and pod_view.is_of_deployment(pod))


def _crashing(states: Mapping[Key, NodeState], seen: Situation) -> Iterator[tuple[Key, Manifest, Crash]]:
    """Yield the states that are about a pod with a container that ended by itself, with the first such pod."""
    for key, state in states.items():
        found = pods_of(state, seen) if state.state in _CONCERNED else ()
        crashed = next(((pod, crash) for pod in found if (crash := pod_view.crash(pod))), None)
        if crashed:
            yield key, *crashed


def _with(state: NodeState, pod: Manifest, said: Said) -> NodeState:
    """Return a state that says what its pod said. One that is about something else, such as a turn, stays."""
    words, cause = in_words(str(said.crash), said.lines), pod_view.cause(pod)
    if cause in state.reason:
        return replace(state, reason=state.reason.replace(cause, words))
    is_about_it = not state.node or state.reason.startswith(NOT_READY)
    return replace(state, reason=f"{words}; {state.reason}") if is_about_it else state
