"""The events of one WATCH, as they come in."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, TypedDict, cast

import msgspec

from gpu_provision.model.cluster import Manifest

_TORN = "the stream was torn"
_SHOWN = 200  # bytes of a line that is no event
_PIECE = 2**16  # bytes that are read at a time at most: a server may send thousands of events at once


class WatchEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ``object`` is JSON that its reader decodes, or decoded."""

    type: str
    object: Manifest | msgspec.Raw
    version: str


class _EventMetadata(TypedDict, total=False):
    resourceVersion: str
    name: str


class _Object(TypedDict):
    metadata: _EventMetadata


class _Event(msgspec.Struct):  # of a TypedDict msgspec decodes no Raw
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class WatchStream:
    """The events of one WATCH; iterate it in one thread, `close` it from another."""

    READ_SECONDS = 120
    """For how long nothing may arrive: servers send a bookmark about once a minute."""

    @staticmethod
    def seconds() -> int:
        """Return after how many seconds the server is to end a stream: another time for each, so not all at once."""
        return random.randint(240, 360)  # noqa: S311 - no secret

    def __init__(self, response: Any, noted: Callable[[], AbstractContextManager[None]]) -> None:
        """Wrap the open response; what reading it raises goes through ``noted``."""
        self._response, self._noted = response, noted

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the server ends the stream. Raises Gone, Unreachable, ValueError for what is no event."""
        with self._noted():
            buffer = b""
            for chunk in self._response.stream(amt=_PIECE, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield _event(line)

    def close(self) -> None:
        """End the stream; the iterating thread stops with an Unreachable or at its end.

        Only the socket is shut down: closing the response would wait for the lock of its reader.
        """
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._response.shutdown()


def _event(line: bytes) -> WatchEvent:
    """Return the event of a line; one that is torn ends the stream like a lost connection. Raises ValueError."""
    try:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            raise _error(msgspec.json.decode(event.object, type=dict[str, Any]))
        metadata = msgspec.json.decode(event.object, type=_Object)["metadata"]
        is_event = "resourceVersion" in metadata and (event.type == "BOOKMARK" or "name" in metadata)
    except msgspec.ValidationError:
        is_event = False
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OSError(_TORN) from error
    if not is_event:
        message = f"no event of a watch: {line[:_SHOWN]!r}"
        raise ValueError(message)
    return WatchEvent(event.type, event.object, metadata["resourceVersion"])


def _error(status: Mapping[str, Any]) -> Exception:
    from kubernetes.client.exceptions import ApiException

    error = ApiException(status=status.get("code"), reason=status.get("reason"))
    error.body = json.dumps(status)
    return cast("Exception", error)
