"""What a controller reports: a line of its log each, and an Event of the stack for what users follow."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import ProvisionError, visible

_ROOM = len("; and 1000000 more")


def cut(text: str, most: int) -> str:
    """Return a text of so many characters at most."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_many_as_fit(sentences: Sequence[str], most: int) -> str:
    """Return whole sentences, the first one in any case, in so many characters at most, and how many are left out."""
    text = cut(sentences[0], most - _ROOM)
    for position, sentence in enumerate(sentences[1:], start=1):
        if len(text) + len(sentence) + _ROOM > most:
            return f"{text}; and {len(sentences) - position} more"
        text = f"{text}; {sentence}"
    return text


_MESSAGE = 1024  # characters: what the API server takes of an Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that happened.

    Attributes:
        reason: One word in CamelCase, as Events have it.
        stack: Name of the stack that it is about; empty if it is about the controller itself.
    """

    reason: str
    message: str
    stack: str = ""
    is_warning: bool = False


Take = Callable[[Note], None]


def of_mistake(error: Exception, stack: str) -> Note:
    """Return what the log says of a mistake in gpu-provision: its traceback."""
    message = "".join(traceback.format_exception(error))
    return Note(reason="Mistake", message=message, stack=stack, is_warning=True)


def changes(before: Mapping[str, Any], after: Mapping[str, Any], stack: str) -> Iterator[Note]:
    """Yield what became of a stack between two statuses: what began, and what is over."""
    known = {each["type"]: each for each in before.get("conditions") or ()}
    for condition in after.get("conditions") or ():
        kind, earlier = condition["type"], known.get(condition["type"], {})
        is_other = (earlier.get("status"), earlier.get("reason")) != (condition["status"], condition["reason"])
        if is_other and condition["status"] == "True":
            reason, message = condition["reason"], condition["message"]
            yield Note(reason=reason, message=message, stack=stack, is_warning=kind == "Degraded")
        elif kind == "Degraded" and earlier.get("status") == "True" and condition["status"] == "False":
            message = f"what stood in the way is over: {earlier['reason']}"
            yield Note(reason="Recovered", message=message, stack=stack)


def post(cluster: Cluster, stack: Manifest, note: Note) -> None:
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
