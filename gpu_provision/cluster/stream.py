"""The events of one WATCH, as they come in."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gpu_provision.model.cluster import Kind, Manifest

_TORN = "the stream was torn"
_SHOWN = 200  # bytes of a line that is no event


class WatchEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Manifest


class WatchStream:
    """The events of one WATCH; iterate it in one thread, `close` it from another."""

    READ_SECONDS = 120
    """For how long nothing may arrive: servers send a bookmark about once a minute."""

    @staticmethod
    def seconds() -> int:
        """Return after how many seconds the server is to end a stream: another time for each, so not all at once."""
        return random.randint(240, 360)  # noqa: S311 - no secret

    def __init__(self, response: Any, kind: Kind, noted: Callable[[], AbstractContextManager[None]]) -> None:
        """Wrap the open response; what reading it raises goes through ``noted``."""
        self._response, self._kind, self._noted = response, kind, noted

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the server ends the stream. Raises Gone, Unreachable, ValueError for what is no event."""
        with self._noted():
            buffer = b""
            for chunk in self._response.stream(amt=None, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield self._event(_parsed(line))

    def close(self) -> None:
        """End the stream; the iterating thread stops with an Unreachable or at its end.

        Only the socket is shut down: closing the response would wait for the lock of whoever reads it.
        """
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._response.shutdown()

    def _event(self, raw: dict[str, Any]) -> WatchEvent:
        if raw["type"] == "ERROR":
            from kubernetes.client.exceptions import ApiException

            error = ApiException(status=raw["object"].get("code"), reason=raw["object"].get("reason"))
            error.body = json.dumps(raw["object"])
            raise error
        item = {"apiVersion": self._kind.api_version, "kind": self._kind.kind, **raw["object"]}
        return WatchEvent(raw["type"], item)


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the event of a line; one that is torn ends the stream like a lost connection. Raises ValueError."""
    try:
        event = json.loads(line)
    except ValueError as error:  # also of bytes that are no UTF-8
        raise OSError(_TORN) from error
    if not _is_event(event):
        message = f"no event of a watch: {line[:_SHOWN]!r}"
        raise ValueError(message)
    return dict(event)


def _is_event(event: Any) -> bool:
    match event:
        case {"type": "ERROR", "object": dict()}:
            return True
        case {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str()}}}:
            return True
        case {"type": type_, "object": {"metadata": {"resourceVersion": str(), "name": str()}}}:
            return type_ in {"ADDED", "MODIFIED", "DELETED"}
        case _:
            return False
