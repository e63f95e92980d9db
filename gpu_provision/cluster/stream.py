"""The events of one WATCH, as they come in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gpu_provision.model.cluster import Kind, Manifest

_TORN = "the stream was torn"


class WatchEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Manifest


class WatchStream:
    """The events of one WATCH; iterate it in one thread, `close` it from another."""

    SECONDS = 300  # after which the server ends the stream and the watcher resumes

    def __init__(self, response: Any, kind: Kind, noted: Callable[[], AbstractContextManager[None]]) -> None:
        """Wrap the open response; what reading it raises goes through ``noted``."""
        self._response, self._kind, self._noted = response, kind, noted

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the server ends the stream. Raises Gone, Unreachable."""
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
    """A stream that is torn in the middle can end in bytes that are no event: the connection is lost."""
    try:
        event = json.loads(line)
    except ValueError as error:  # also of bytes that are no UTF-8
        raise OSError(_TORN) from error
    if not isinstance(event, dict) or not {"type", "object"} <= event.keys():
        raise OSError(_TORN)
    return event
