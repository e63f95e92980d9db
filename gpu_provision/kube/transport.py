"""Send requests to an API server, and watch: bounded in time, counted, fenced, repeated if they fail, in threads."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

import msgspec

from gpu_provision.kube.errors import ExpiredError, RequestContext, UnavailableError, map_api_errors, no_api_server
from gpu_provision.kube.retry import FIRST_CONTACT_SECONDS, QUIET_SECONDS, RETRIED, RETRY_SECONDS, Retries
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import ForbiddenError, InvalidError, ProvisionError, UnreachableError

if TYPE_CHECKING:
    from gpu_provision.kube.lease import LeaderElector

CONNECT_SECONDS, READ_SECONDS = 5, 30
WATCH_READ_SECONDS = 120  # for how long nothing may arrive in a watch: servers send a bookmark about once a minute
LOG = logging.getLogger("gpu_provision.kube")
"""Says at level WARNING that a server does not answer for a while, at DEBUG each time that a request is repeated."""


_Shape = TypeVar("_Shape")


class Answer(NamedTuple):
    """Stands for the server's answer that was lost: a connection can break after the request was carried out."""

    data: bytes
    status: int = 200


Done = Callable[[InvalidError], Answer | None]


def no_fence(_path: str) -> None:
    """Let every write pass: the fence of a cluster without a lock."""


class Connection:
    """One API server, one user."""

    def __init__(
        self, client: Any, *, name: str, server: str, user: str = "", retry_seconds: float | None = None
    ) -> None:
        """Keep a DynamicClient; with ``retry_seconds``, every request is repeated for so long, also the first one."""
        self._client = client
        self.api: Any = getattr(client, "client", None)  # the ``kubernetes.client.ApiClient``
        self.name, self.server = name, server  # of the kubeconfig's context; URL
        self.user = user  # the kubeconfig's entry whose credentials are used; what the server calls us is `whoami`
        self.advice = "check that the cluster runs and that this machine may reach it: kubectl version"
        self.retry_seconds = RETRY_SECONDS if retry_seconds is None else retry_seconds
        self._first_seconds = FIRST_CONTACT_SECONDS if retry_seconds is None else retry_seconds
        self.requests = self.retries = 0  # sent so far, and how many of them were repetitions
        self.health = ApiHealth()
        self.fence: Callable[[str], None] = no_fence  # asked before every write; raises if we may not write any more
        self.leadership: LeaderElector | None = None  # what a controller's locks and writes rest on besides
        self.date = ""  # the server's clock as its last answer told it, if it does
        self._counting, self._cancelled = threading.Lock(), threading.Event()
        self._reported_at = float("-inf")

    def cancel_retries(self) -> None:
        """Repeat no request any more, not even those that wait for their next try. From any thread."""
        self._cancelled.set()

    def _request_context(self, verb: str, subject: str) -> RequestContext:
        return RequestContext(self.server, verb, subject, self.advice)

    def _json(self, verb: str, path: str, subject: str, **options: Any) -> dict[str, Any]:
        return self._send_and_decode(dict[str, Any], verb, path, subject, **options)

    def _send_and_decode(self, shape: type[_Shape], verb: str, path: str, subject: str, **options: Any) -> _Shape:
        """Return the answer as ``shape``; fields that it lacks are not decoded."""
        data = self._send(verb, path, subject, **options).data
        try:
            return msgspec.json.decode(data, type=shape)
        except ValueError as error:
            raise no_api_server(self._request_context(verb, subject)) from error

    def _send(
        self,
        verb: str,
        path: str,
        subject: str,
        *,
        retry_seconds: float | None = None,
        done: Done = lambda _refusal: None,
        **options: Any,
    ) -> Any:
        place = self._request_context(verb, subject)
        # 410 says that the next page of a LIST is gone; other requests get it from a proxy that is out of step.
        retried = RETRIED if "continue" in dict(options.get("query", ())) else (*RETRIED, ExpiredError)

        def send(connect_seconds: float) -> Any:
            return self._send_once(verb, path, place, timeout=(connect_seconds, READ_SECONDS), **options)

        return self.retry(send, place, retried=retried, retry_seconds=retry_seconds, done=done)

    def retry(
        self,
        send: Callable[[float], Any],
        place: RequestContext,
        *,
        retried: tuple[type[ProvisionError], ...] = RETRIED,
        retry_seconds: float | None = None,
        done: Done = lambda _refusal: None,
    ) -> Any:
        """Send a request until it is answered, for as long as the connection's policy allows.

        Args:
            send: Sends it once; called with the seconds that a connection may take.
            retried: Errors after which it is sent again.
            retry_seconds: In place of the connection's own, if that is longer.
            done: Called if a repetition is refused; returns the answer if an earlier try was carried out.

        Raises ProvisionError: the last try failed so, or the server refuses it.
        """
        retries, connect = Retries(), float(CONNECT_SECONDS)
        while True:
            try:
                return send(connect)
            except retried as error:
                retries.seconds = self._retry_seconds(retry_seconds)
                delay = retries.delay(error, now := time.monotonic())
                if delay is None:
                    raise
                with self._counting:
                    self.retries += 1
                LOG.debug("%s %s: %s; again in %.1f s", place.verb, place.subject, retries, delay)
                if retries.should_report:
                    left = retries.seconds_left(time.monotonic())
                    self.report_retry(f"{retries}; trying for another {left:.0f} s ({place.verb} {place.subject})")
                if self._cancelled.wait(delay):
                    raise
                # A busy server gets more time for a handshake with each try.
                connect = min(2 * connect, READ_SECONDS, max(CONNECT_SECONDS, retries.seconds_left(now)))
            except InvalidError as refusal:
                if not retries.tries or (answer := done(refusal)) is None:
                    raise
                return answer

    def _retry_seconds(self, limit: float | None) -> float:
        seconds = self.retry_seconds if self.health.has_answered else min(self._first_seconds, self.retry_seconds)
        return seconds if limit is None else min(limit, seconds)

    def report_retry(self, what: str) -> None:
        """Say that a request is repeated, unless something of the kind was said a moment ago."""
        now = time.monotonic()
        with self._counting:
            if now - self._reported_at < QUIET_SECONDS:
                return
            self._reported_at = now
        LOG.warning(what)

    def _send_once(  # noqa: PLR0913 (the parts of an HTTP request)
        self,
        verb: str,
        path: str,
        place: RequestContext,
        *,
        body: Any = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: tuple[float, float] = (CONNECT_SECONDS, READ_SECONDS),
    ) -> Any:
        if verb != "GET":
            self.fence(path)
        with self._counting:
            self.requests += 1
        with self.health.track(place):
            response = self._client.request(
                verb.lower(),
                path,
                body=body,
                query_params=[*query],
                header_params={"Accept": accept},
                content_type=content_type,
                serialize=False,
                _request_timeout=timeout,
            )
            self.date = response.headers.get("Date", "")
            if ("watch", "true") not in query:
                _ = response.data  # read here, so that a connection lost in the middle is translated too
            return response


SETTLING_SECONDS = 30.0
"""For how long after a silence a refusal may pass: an API server that starts does not know its roles for a moment."""


class ApiHealth:
    """What all requests to one API server have met last; once it ``has_answered``, requests are repeated for longer."""

    def __init__(self) -> None:
        """Begin with a server of which nothing is known."""
        self.has_answered = False
        self._began: float | None = None
        self._last = float("-inf")

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has been answered; 0 if the last request was."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    @contextmanager
    def track(self, place: RequestContext) -> Iterator[None]:
        """Turn what the client library raises into this project's errors, and note whether the server answers.

        A refusal right after a silence is part of the silence.
        """
        try:
            with map_api_errors(place):
                yield
        except UnreachableError as error:
            self.has_answered = self.has_answered or isinstance(error, UnavailableError)
            self._last = time.monotonic()
            self._began = self._last if self._began is None else self._began
            raise
        except ProvisionError as error:
            self.has_answered, self._began = True, None
            if isinstance(error, ForbiddenError) and time.monotonic() - self._last < SETTLING_SECONDS:
                raise UnreachableError(*error.findings) from error
            raise
        self.has_answered, self._began = True, None


class RequestPool(ThreadPoolExecutor):
    """A pool whose threads stop repeating requests when the thread that waits for them is interrupted."""

    def __init__(self, connection: Connection, max_workers: int = 12) -> None:
        """Start no thread yet."""
        super().__init__(max_workers)
        self._connection = connection

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        """Wait for the threads; after Ctrl-C, only for what they have sent already."""
        if is_interrupted := kind is not None and not issubclass(kind, Exception):
            self._connection.cancel_retries()
        self.shutdown(cancel_futures=is_interrupted)


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


# msgspec 0.22 builds what it knows of a type at its first use, and crashes if two threads do so at once.
for _shape in (_Event, _Object):
    msgspec.json.Decoder(_shape)


class WatchStream:
    """The events of one WATCH; iterate it in one thread, `close` it from another."""

    def __init__(self, response: Any, noted: Callable[[], AbstractContextManager[None]]) -> None:
        """Wrap the open response; what reading it raises goes through ``noted``."""
        self._response, self._track_health = response, noted

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the stream ends. Raises ExpiredError, UnreachableError, and ValueError for odd lines."""
        with self._track_health():
            buffer = b""
            for chunk in self._response.stream(amt=2**16, decode_content=True):  # thousands of events may come at once
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield _event_of(line)

    def close(self) -> None:
        """End the stream; the iterating thread stops. Closing the response would wait for the lock of its reader."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._response.shutdown()


def _event_of(line: bytes) -> WatchEvent:
    """Return the event of a line; one that is torn ends the stream like a lost connection. Raises ValueError."""
    try:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            from kubernetes.client.exceptions import ApiException

            status = msgspec.json.decode(event.object, type=dict[str, Any])
            error = ApiException(status=status.get("code"), reason=status.get("reason"))
            error.body = json.dumps(status)
            raise error
        metadata = msgspec.json.decode(event.object, type=_Object)["metadata"]
        is_event = "resourceVersion" in metadata and (event.type == "BOOKMARK" or "name" in metadata)
    except msgspec.ValidationError:
        is_event = False
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = "the stream was torn"
        raise OSError(message) from error
    if not is_event:
        message = f"no event of a watch: {line[:200]!r}"
        raise ValueError(message)
    return WatchEvent(event.type, event.object, metadata["resourceVersion"])
