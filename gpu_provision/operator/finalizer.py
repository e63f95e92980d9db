"""Writes to GPUStacks: the finalizer, and the status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFound, Outdated
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.operator.events import (
    Note,
    Take,
    changes,
    post,
)
from gpu_provision.operator.stack import FINALIZER, HOME, LED_BY
from gpu_provision.operator.status import Standing, status_of
from gpu_provision.operator.telemetry import StackFigures

_PAUSE_SECONDS = 1.0  # between two writes of a status: a reader sees no more, and a rollout of a fleet writes no more


def hold(cluster: Cluster, stack: ObjectRef, namespace: str, lease: str = "") -> None:
    """Have the API server wait for our removal before the stack goes, and write down where that is to look.

    Args:
        lease: By which controllers agree, for command lines to watch; empty for the usual one.
    """

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found, notes = metadata.get("finalizers") or [], metadata.get("annotations") or {}
        held = {} if FINALIZER in found else {"finalizers": [*found, FINALIZER]}
        marks = {} if HOME in notes else {HOME: namespace}
        led_by = {} if notes.get(LED_BY, "") == lease else {LED_BY: lease or None}
        return {**held, "annotations": {**marks, **led_by}} if marks or led_by else held

    _change(cluster, stack, change)


def let_go(cluster: Cluster, stack: ObjectRef) -> None:
    """Let the stack go."""

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found = metadata.get("finalizers") or []
        return {"finalizers": [each for each in found if each != FINALIZER]} if FINALIZER in found else {}

    _change(cluster, stack, change)


def _change(cluster: Cluster, stack: ObjectRef, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    while live := cluster.get(stack):
        wanted = change(live["metadata"])
        if not wanted:
            return
        with contextlib.suppress(Outdated, NotFound):
            cluster.merge(stack, {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], **wanted}})
            return


@dataclass(slots=True)
class Reporter:
    """Keeps the status of one stack current: the last word is always written, those in between at most every second.

    Attributes:
        take: Told what became of the stack, once it is written.
    """

    cluster: Cluster
    stack: Manifest
    take: Take
    figures: StackFigures = field(default_factory=StackFigures)
    _written: dict[str, Any] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _trouble: str = ""

    def __post_init__(self) -> None:
        """Start from what is there."""
        self._written = self.stack.get("status") or {}

    def report(self, standing: Standing, now: float) -> float:
        """Write the status if it is another one; return in how many seconds to ask again, infinity for no need to.

        Args:
            now: Of a monotonic clock.
        """
        if now < self._not_before:
            return self._not_before - now
        status = status_of(standing, self._written, _timestamp())
        if status == self._written:
            return float("inf")
        self._not_before = now + _PAUSE_SECONDS
        return float("inf") if self._write(status) else _PAUSE_SECONDS

    def _write(self, status: dict[str, Any]) -> bool:
        """Write the status; say whether that is done with."""
        try:
            self.cluster.merge(ref_of(self.stack), {"status": _instead_of(self._written, status)}, part="status")
        except NotFound:
            return True  # the stack has gone
        except ProvisionError as error:
            self._tell_trouble(str(error))
            return False
        self._tell(status)
        self._written = status
        return True

    def _tell_trouble(self, message: str) -> None:
        if message != self._trouble:
            self._trouble = message
            self.take(Note(reason="StatusNotWritten", message=message, stack=self._name, is_warning=True))

    @property
    def _name(self) -> str:
        return str(self.stack["metadata"]["name"])

    def _tell(self, status: dict[str, Any]) -> None:
        self.figures.take_status(status)
        for note in changes(self._written, status, self._name):
            self.take(note)
            post(self.cluster, self.stack, note)


def _instead_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that leaves nothing of what was there before."""
    gone = {key: None for key in before if key not in after}
    return gone | {
        key: _instead_of(before.get(key) or {}, value) if isinstance(value, Mapping) else value
        for key, value in after.items()
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
