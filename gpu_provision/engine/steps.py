"""The steps of a run: started once, carried out side by side, and remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Self

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import AlreadyExists, NotFound, Outdated
from gpu_provision.engine.actions import EvictPod, LabelNode, MoveNode, ReadLog, RemovePod, StartPod, Step
from gpu_provision.engine.crashes import Crashes
from gpu_provision.engine.rollout import Rollout
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Rejected
from gpu_provision.planning.states import Key
from gpu_provision.rollout.actions import Move

SEEN_SECONDS = 5.0
"""Within which the effect of a step comes back through a watch, also on a busy server."""

_PARALLEL = 16


class Steps:
    """Carries steps out in threads of its own; leaving the context waits for them.

    Attributes:
        written: Every step that wrote something.
    """

    def __init__(  # noqa: PLR0913 - what steps need, and whom they tell
        self,
        cluster: Cluster,
        rollout: Rollout,
        crashes: Crashes,
        *,
        rejected: dict[Key, str],
        on_end: Callable[[], None],
        on_written: Callable[[Manifest], None],
    ) -> None:
        """Prepare; nothing is started.

        Args:
            rejected: Told why the API server refused a step for good.
            on_end: Called from another thread when something has ended.
            on_written: Called from another thread with a pod or node as it is there, in case its watch lags.
        """
        self._cluster, self._rollout, self._crashes = cluster, rollout, crashes
        self._rejected, self._on_end, self._on_written = rejected, on_end, on_written
        self._pool = ThreadPoolExecutor(_PARALLEL)
        self._running: dict[object, Future[None]] = {}
        self._has_ended = threading.Event()
        self._not_before: dict[Step, float] = {}
        self.written: list[Step] = []  # appended to by several threads; a count would lose some

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()

    @property
    def is_busy(self) -> bool:
        """Whether anything has not ended yet, or was not collected."""
        return bool(self._running)

    @property
    def moving(self) -> dict[str, Move]:
        """Return the nodes that are being moved in a rollout, with the move."""
        return {step.move.node: step.move for step in self._running if isinstance(step, MoveNode)}

    def start(self, step: Step, now: float) -> None:
        """Start a step, unless it runs or its effect may just not have been seen yet."""
        if step in self._running or now < self._not_before.get(step, 0.0):
            return
        self._not_before[step] = now + SEEN_SECONDS
        self._submit(step, partial(self._perform, step))

    def rest(self, seconds: float) -> None:
        """Let time pass, at most until a step ends: what follows it is to be done at once."""
        self._has_ended.wait(seconds)

    def collect(self) -> list[Step]:
        """Forget the steps that have ended, and return them. Raises what a step could not go on from."""
        self._has_ended.clear()
        ended = [name for name, future in self._running.items() if future.done()]
        for name in ended:
            self._running.pop(name).result()
        return [step for step in ended if isinstance(step, Step)]

    def _submit(self, name: object, work: Callable[[], None]) -> None:
        self._running[name] = self._pool.submit(work)
        self._running[name].add_done_callback(self._end)

    def _end(self, _: Future[None]) -> None:
        if all(future.done() for future in list(self._running.values())):
            self._has_ended.set()
        self._on_end()

    def _perform(self, step: Step) -> None:
        try:
            self._do(step)
        except (AlreadyExists, NotFound, Outdated):
            return  # somebody was faster, or the object is gone: the next look tells
        except Rejected as error:
            self._rejected[step.key] = f"{step.ref}: {error.findings[0].evidence or error}"

    def _do(self, step: Step) -> None:
        match step:
            case LabelNode():
                self._on_written(self._cluster.merge(step.ref, step.patch()))
            case StartPod():
                self._start(step)
            case RemovePod():
                self._cluster.delete(step.ref, uid=step.uid)
            case MoveNode():
                self._on_written(self._rollout.move(step))
            case EvictPod():
                self._rollout.evict(step)
            case ReadLog():
                self._crashes.read(step)
                return
        self.written.append(step)

    def _start(self, step: StartPod) -> None:
        """Create a pod. One that exists is what the next look has to see: its watch is behind."""
        try:
            self._on_written(self._cluster.create(step.manifest))
        except AlreadyExists:
            if pod := self._cluster.get(step.ref):
                self._on_written(pod)
            raise
