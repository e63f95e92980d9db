"""One run shared by many callers: pyinfra's operations, one per component, wait on the same run.

The reading that planning needs is made once and used until the run has written; `outcome` has the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.cluster.client import Cluster, connect
from gpu_provision.cluster.locate import locate
from gpu_provision.engine import access, journal
from gpu_provision.engine.explain import explain
from gpu_provision.engine.reading import Reading, read
from gpu_provision.engine.run import Outcome, Run
from gpu_provision.engine.settle import SETTLED
from gpu_provision.model.findings import Finding, ProvisionError, Refused, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, NodeState, State
from gpu_provision.planning.states import Key


@dataclass(slots=True)
class Session:
    """The work of one process on one stack.

    Attributes:
        inventory: What is wanted.
        revalidate: Whether validations run again although they have passed.
    """

    inventory: Inventory
    revalidate: bool = False
    _cluster: Cluster | None = None
    _reading: Reading | None = None
    _run: _Background | None = None
    _explained: tuple[Finding, ...] | None = None
    _listeners: list[Callable[[Event], None]] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """The connection; made when it is first asked for."""
        if self._cluster is None:
            self._cluster = connect(*locate(self.inventory))
            if self.inventory.cluster.sandbox:
                self._cluster.advice = "the sandbox has ended or was reset; run again: that starts it"
        return self._cluster

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Tell ``listener`` of every event from now on."""
        self._listeners.append(listener)

    def reading(self) -> Reading:
        """Return what was wanted and seen, and the plan; read once."""
        if self._reading is None:
            try:
                self._reading = read(self.cluster, self.inventory, revalidate=self.revalidate)
            except Refused as refusal:
                raise access.missing_to_read(self.cluster, self.inventory, refusal) from refusal
        return self._reading

    def forget(self) -> None:
        """Read again when next asked: time has passed since the plan was shown."""
        if self._run is None:
            self._reading = None

    def refusals(self) -> tuple[Finding, ...]:
        """Return why a run may not begin: conflicts and rejected objects, found before the first write."""
        problems = self.reading().plan.findings
        return tuple(item for item in problems if item.severity is Severity.ERROR and item.code in _REFUSE)

    def start(self) -> None:
        """Begin the run if it has not begun.

        Raises:
            RunFailed: Planning found conflicts; nothing was written.
            Refused: Permissions are missing; nothing was written.
        """
        if self._run is not None:
            return
        if refused := self.refusals():
            raise RunFailed(*refused)
        if missing := access.missing_to_run(self.cluster, self.reading()):
            raise Refused(missing)
        self._run = _Background(self.cluster, self.reading(), self._tell)
        self._run.start()

    def wait(self, component: str, *, tick: Callable[[str], None] = lambda _: None) -> tuple[NodeState, ...]:
        """Wait until a component has settled everywhere; return what failed or is blocked of it.

        If something failed, the whole run is awaited first, so that whatever can be finished is finished.

        Args:
            tick: Told about once a second how far the component is: ``2/3 ready; t4-2: ImagePullBackOff``.

        Raises:
            ProvisionError: The run itself ended early.
        """
        if self._run is None:
            return ()
        broken = self._run.wait_for(component, tick)
        if broken:
            self._run.join()
        return broken

    def finish(self) -> Outcome | None:
        """Wait for the end of the run; None if nothing was started. Raises ProvisionError if it ended early."""
        return self._run.join() if self._run else None

    def explain(self) -> tuple[Finding, ...]:
        """Return why the run did not end as declared, and what the plan found wrong; writes the run's record."""
        outcome = self.finish()
        planned = self.reading().plan.findings
        if outcome is None:
            return planned
        if self._explained is None:
            told = (item for item in planned if item.code not in _TOLD_BY_STATES)
            self._explained = (*explain(self.cluster, outcome), *told)
            journal.record(self.inventory, self.reading().observed.cluster, outcome.result, self._explained)
        return self._explained

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


_STEP_SECONDS = 10
_REFUSE = frozenset({"GP304", "GP305", "GP309"})
_TOLD_BY_STATES = frozenset({"GP201"})


class _Background:
    """A run in a thread of its own; under gevent, in a greenlet."""

    def __init__(self, cluster: Cluster, reading: Reading, tell: Callable[[Event], None]) -> None:
        self._states: Mapping[Key, NodeState] = {}
        self._changed = threading.Condition()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._run = Run(cluster, reading, listen=tell, on_states=self._take)
        self._thread = threading.Thread(target=self._execute, name="gpu-provision", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _execute(self) -> None:
        try:
            self._outcome = self._run.execute()
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits)
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _take(self, states: Mapping[Key, NodeState]) -> None:
        with self._changed:
            self._states = states
            self._changed.notify_all()

    def _over(self) -> bool:
        return self._outcome is not None or self._error is not None

    def wait_for(self, component: str, tick: Callable[[str], None]) -> tuple[NodeState, ...]:
        with self._ending_on_interrupt():
            while not self._over() and not self._settled(component):
                with self._changed:
                    self._changed.wait(1.0)
                tick(summary(self._states, component))
        if self._error is not None:
            raise self._error
        broken = {State.FAILED, State.BLOCKED}
        return tuple(state for state in self._states.values() if state.component == component and state.state in broken)

    @contextlib.contextmanager
    def _ending_on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C let the run finish its step and give the lock back before the interrupt goes on."""
        try:
            yield
        except KeyboardInterrupt:
            self._run.cancel()
            self._thread.join(_STEP_SECONDS)
            raise

    def _settled(self, component: str) -> bool:
        own = [state for state in self._states.values() if state.component == component]
        return bool(own) and all(state.state in SETTLED for state in own)

    def join(self) -> Outcome:
        with self._ending_on_interrupt(), self._changed:
            while not self._over():
                self._changed.wait(1.0)
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise ProvisionError(Finding(code="GP500", what="the run ended without a result"))
        return self._outcome


def summary(states: Mapping[Key, NodeState], component: str) -> str:
    """Return how far a component is, and the first thing that is awaited: ``2/3 ready; t4-2: ImagePullBackOff``."""
    own = [state for state in states.values() if state.component == component]
    counted = [state for state in own if state.node] or own
    ready = sum(state.state is State.READY for state in counted)
    awaited = next((state for state in own if state.state is not State.READY and state.reason), None)
    detail = f"; {awaited.node + ': ' if awaited.node else ''}{awaited.reason}" if awaited else ""
    return f"{ready}/{len(counted)} ready{detail}"
