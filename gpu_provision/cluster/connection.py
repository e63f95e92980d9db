"""Requests to an API server: every one bounded in time, counted, asked of the fence, and repeated within our patience.

The slice of the ``kubernetes`` package that is used for it: DynamicClient.request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu_provision.cluster.errors import Overloaded, Place, no_api_server
from gpu_provision.cluster.mandates import Mandate
from gpu_provision.cluster.silence import Silence
from gpu_provision.model.findings import Unreachable

CONNECT_SECONDS, READ_SECONDS = 5, 30


def open_to_all(_path: str) -> None:
    """Let every write pass: the fence of a cluster that nobody has locked."""


class Connection:
    """One API server, one user.

    Attributes:
        name: The kubeconfig context's name.
        server: URL of the API server.
        user: Name of the kubeconfig's entry whose credentials are used; what the server calls us is `whoami`.
        advice: What a reader can do if the API server does not answer.
        patience: Seconds for which a request is repeated while the server is silent or overloaded.
        requests: Number of requests sent so far.
        silence: Whether the server answers, and since when it does not.
        fence: Asked before every write with its path; raises if we may not write any more.
        mandate: What locks that are taken over it rest on besides; None for nothing.
        date: The server's clock as its last answer told it; empty if it does not tell.
    """

    def __init__(self, client: Any, *, name: str, server: str, user: str = "") -> None:
        """Keep a DynamicClient; use `connect` to make one."""
        self._client = client
        self._counting = threading.Lock()
        self.name, self.server, self.user = name, server, user
        self.advice = "check that the cluster runs and that this machine may reach it: kubectl version"
        self.patience = 0.0
        self.requests = 0
        self.silence = Silence()
        self.fence: Callable[[str], None] = open_to_all
        self.mandate: Mandate | None = None
        self.date = ""
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """Have no patience any more, not even for what is under way: somebody wants the end. From any thread."""
        self._hurried.set()

    def _place(self, verb: str, subject: str) -> Place:
        return Place(self.server, verb, subject, self.advice)

    def _json(self, verb: str, path: str, subject: str, **options: Any) -> dict[str, Any]:
        response = self._send(verb, path, subject, **options)
        try:
            return dict(json.loads(response.data))
        except (ValueError, TypeError) as error:
            raise no_api_server(self._place(verb, subject)) from error

    def _send(self, verb: str, path: str, subject: str, *, patience: float | None = None, **options: Any) -> Any:
        give_up = time.monotonic() + (self.patience if patience is None else patience)
        place, connect = self._place(verb, subject), float(CONNECT_SECONDS)
        while True:
            try:
                return self._once(verb, path, place, timeout=(connect, READ_SECONDS), **options)
            except Unreachable as error:
                # A handshake that a busy server is slow at is not begun again and again.
                connect = min(2 * connect, READ_SECONDS, max(CONNECT_SECONDS, give_up - time.monotonic()))
                pause = error.retry_after if isinstance(error, Overloaded) else 0.5
                if self._hurried.is_set() or time.monotonic() + pause > give_up:
                    raise
                self._hurried.wait(pause)  # the server itself asked for this pause, or nobody is there to ask

    def _once(  # noqa: PLR0913 (the parts of an HTTP request)
        self,
        verb: str,
        path: str,
        place: Place,
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
        with self.silence.noted(place):
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
