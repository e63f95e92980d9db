"""One lane per node: what it was about over time, read off the transitions of all of its components. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_provision.model.progress import State, Transition
from gpu_provision.rollout.states import UpgradeState


class Doing(Enum):
    """What a node is about: a letter that reads without colors, and a word."""

    WAITS = (".", "waiting")
    COMES_UP = ("i", "coming up")
    CORDON = ("c", "cordon")
    JOBS = ("j", "jobs may end")
    EVICTION = ("e", "GPU pods leave")
    DRAIN = ("d", "drain")
    RESTART = ("r", "driver restarts")
    VALIDATION = ("v", "validation")
    UNCORDON = ("u", "uncordon")
    ELSEWHERE = ("m", "somebody else's maintenance")
    READY = ("+", "ready")
    BLOCKED = ("-", "blocked")
    FAILED = ("!", "failed")

    def __init__(self, letter: str, word: str) -> None:
        """Name the two."""
        self.letter, self.word = letter, word


AT_REST = frozenset({Doing.WAITS, Doing.READY, Doing.BLOCKED, Doing.FAILED})
"""Nothing goes on."""

_OF_STEP = {
    UpgradeState.UPGRADE_REQUIRED: Doing.WAITS,
    UpgradeState.CORDON_REQUIRED: Doing.CORDON,
    UpgradeState.WAIT_FOR_JOBS_REQUIRED: Doing.JOBS,
    UpgradeState.POD_DELETION_REQUIRED: Doing.EVICTION,
    UpgradeState.DRAIN_REQUIRED: Doing.DRAIN,
    UpgradeState.POD_RESTART_REQUIRED: Doing.RESTART,
    UpgradeState.VALIDATION_REQUIRED: Doing.VALIDATION,
    UpgradeState.UNCORDON_REQUIRED: Doing.UNCORDON,
    UpgradeState.NODE_MAINTENANCE_REQUIRED: Doing.ELSEWHERE,
    UpgradeState.POST_MAINTENANCE_REQUIRED: Doing.ELSEWHERE,
}
_OF_STATE = {
    State.FAILED: Doing.FAILED,
    State.PROGRESSING: Doing.COMES_UP,
    State.LEAVING: Doing.WAITS,
    State.BLOCKED: Doing.BLOCKED,
    State.PENDING: Doing.WAITS,
    State.READY: Doing.READY,
}
_FIRST = (State.FAILED, State.PROGRESSING, State.BLOCKED, State.LEAVING, State.PENDING, State.READY)
_OVER = frozenset({State.READY, State.FAILED})
_ENDS_BADLY = frozenset({State.BLOCKED, State.FAILED})
_VALIDATION = "validation"


@dataclass(frozen=True, slots=True)
class Span:
    """A node was about one thing from ``begin`` to ``end``, in seconds; ``reason`` is the last that was known."""

    begin: float
    end: float
    doing: Doing
    component: str
    reason: str

    @property
    def text(self) -> str:
        """Return what it was about, and why, in words: ``toolkit coming up: ContainerCreating``."""
        if self.doing is Doing.WAITS and self.reason:
            return self.reason
        about = f"{self.component} {self.doing.word}" if self.doing in _NAMES_COMPONENT else self.doing.word
        return f"{about}: {self.reason}" if self.reason else about


_NAMES_COMPONENT = frozenset({Doing.COMES_UP, Doing.FAILED})


@dataclass(slots=True)
class Lane:
    """One node. Fed with its transitions in the order of time."""

    node: str
    _open: list[Span] = field(default_factory=list)
    _components: dict[str, Transition] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Take a transition of one of the node's components in."""
        if transition.component not in self._components and self._open and self.current.doing is Doing.READY:
            self._open[-1] = replace(self.current, doing=Doing.WAITS)  # it was not all that there was to do
        self._components[transition.component] = transition
        leading = _leading(self._components.values())
        doing = _doing(leading)
        span = Span(transition.at, transition.at, doing, leading.component, reason_beside(leading.step, leading.reason))
        before = self._open.pop() if self._open else span
        if (before.doing, before.component) == (span.doing, span.component):
            self._open.append(replace(span, begin=before.begin))
        else:
            self._open += [replace(before, end=transition.at), span]

    @property
    def current(self) -> Span:
        """Where the node stands; its end is not known yet."""
        return self._open[-1]

    @property
    def started(self) -> float:
        """When something was first done to the node; infinity if nothing ever was."""
        return next((span.begin for span in self._open if span.doing not in AT_REST), float("inf"))

    def spans(self, end: float) -> tuple[Span, ...]:
        """Return what the node was about until ``end``."""
        return (*self._open[:-1], replace(self.current, end=max(end, self.current.begin)))


@dataclass(slots=True)
class Lanes:
    """The lanes of all nodes, by name."""

    of: dict[str, Lane] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Take a transition in; one of a component that is not per node is none of a lane."""
        if transition.node:
            self.of.setdefault(transition.node, Lane(transition.node)).add(transition)


def lanes_of(timeline: Iterable[Transition]) -> Lanes:
    """Return the lanes of a run that is over."""
    lanes = Lanes()
    for transition in timeline:
        lanes.add(transition)
    return lanes


def _leading(components: Iterable[Transition]) -> Transition:
    """Return the component that tells what its node is about: of the driver's replacement, else the first not ready."""
    known = list(components)
    rolling = next((each for each in known if is_under_way(each.step) and each.state not in _OVER), None)
    return rolling or min(known, key=lambda each: _FIRST.index(each.state))


def _doing(leading: Transition) -> Doing:
    if leading.state in _ENDS_BADLY:
        return _OF_STATE[leading.state]
    if is_under_way(leading.step):
        return _OF_STEP[UpgradeState(leading.step)]
    if leading.state is State.PROGRESSING and leading.component.endswith(_VALIDATION):
        return Doing.VALIDATION
    return _OF_STATE[leading.state]


def is_under_way(step: str) -> bool:
    """Whether a node with this value of its label is on its way to another driver, or waits for its turn."""
    return step in _OF_STEP


def reason_beside(step: str, reason: str) -> str:
    """Return a reason, unless it only says the step again."""
    return "" if step and reason == f"is in {step}" else reason
