"""What a controller reports: log lines, Events of the stack, and its status."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import ProvisionError, visible
from gpu_provision.operator.status import StackObservation, status_of
from gpu_provision.operator.telemetry import StackMetrics

_MESSAGE = 1024  # characters: what the API server takes of an Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEvent:
    """Something that happened.

    Attributes:
        reason: One word in CamelCase, as Events have it.
        stack: Name of the stack that it is about; empty if it is about the controller itself.
    """

    reason: str
    message: str
    stack: str = ""
    is_warning: bool = False


EventSink = Callable[[StackEvent], None]


def internal_error_event(error: Exception, stack: str) -> StackEvent:
    """Return what the log says of a mistake in gpu-provision: its traceback."""
    message = "".join(traceback.format_exception(error))
    return StackEvent(reason="Mistake", message=message, stack=stack, is_warning=True)


def condition_events(before: Mapping[str, Any], after: Mapping[str, Any], stack: str) -> Iterator[StackEvent]:
    """Yield what became of a stack between two statuses: what began, and what is over."""
    known = {each["type"]: each for each in before.get("conditions") or ()}
    for condition in after.get("conditions") or ():
        kind, earlier = condition["type"], known.get(condition["type"], {})
        is_other = (earlier.get("status"), earlier.get("reason")) != (condition["status"], condition["reason"])
        if is_other and condition["status"] == "True":
            reason, message = condition["reason"], condition["message"]
            yield StackEvent(reason=reason, message=message, stack=stack, is_warning=kind == "Degraded")
        elif kind == "Degraded" and earlier.get("status") == "True" and condition["status"] == "False":
            message = f"what stood in the way is over: {earlier['reason']}"
            yield StackEvent(reason="Recovered", message=message, stack=stack)


def record_event(cluster: Cluster, stack: Manifest, note: StackEvent) -> None:
    """Make an Event of a note. One that cannot be written is lost, as Events may be."""
    metadata, now = stack["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {key: stack[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        # Events of objects without a namespace are in this one.
        "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning" if note.is_warning else "Normal",
        "reason": note.reason,
        "message": visible(note.message)[:_MESSAGE],
        "source": {"component": "gpu-provision"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with contextlib.suppress(ProvisionError):
        cluster.create(event)


_PAUSE_SECONDS = 1.0  # between two writes of a status: a reader sees no more, and a rollout of a fleet writes no more


@dataclass(slots=True)
class StatusWriter:
    """Keeps the status of one stack current: the last word is always written, those in between at most every second.

    Attributes:
        take: Told what became of the stack, once it is written.
    """

    cluster: Cluster
    stack: Manifest
    take: EventSink
    figures: StackMetrics = field(default_factory=StackMetrics)
    _written: dict[str, Any] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _trouble: str = ""

    def __post_init__(self) -> None:
        """Start from what is there."""
        self._written = self.stack.get("status") or {}

    def report(self, observation: StackObservation, now: float) -> float:
        """Write the status if it is another one; return in how many seconds to ask again, infinity for no need to.

        Args:
            now: Of a monotonic clock.
        """
        if now < self._not_before:
            return self._not_before - now
        status = status_of(observation, self._written, _timestamp())
        if status == self._written:
            return float("inf")
        self._not_before = now + _PAUSE_SECONDS
        return float("inf") if self._write(status) else _PAUSE_SECONDS

    def _write(self, status: dict[str, Any]) -> bool:
        """Write the status; say whether that is done with."""
        try:
            self.cluster.merge(ref_of(self.stack), {"status": _instead_of(self._written, status)}, part="status")
        except NotFoundError:
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
            self.take(StackEvent(reason="StatusNotWritten", message=message, stack=self._name, is_warning=True))

    @property
    def _name(self) -> str:
        return str(self.stack["metadata"]["name"])

    def _tell(self, status: dict[str, Any]) -> None:
        self.figures.take_status(status)
        for note in condition_events(self._written, status, self._name):
            self.take(note)
            record_event(self.cluster, self.stack, note)


def _instead_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that leaves nothing of what was there before."""
    gone = {key: None for key in before if key not in after}
    return gone | {
        key: _instead_of(before.get(key) or {}, value) if isinstance(value, Mapping) else value
        for key, value in after.items()
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
