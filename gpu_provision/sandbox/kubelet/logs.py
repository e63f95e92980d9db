"""Logs of simulated containers, and the endpoint at which a real API server asks for them."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from aiohttp import web

from gpu_provision.sandbox.objects import explain_missing_log

MAX_LINES = 2000


class LogKey(NamedTuple):
    """Names the output of one life of a container; ``restart`` counts the lives before."""

    namespace: str
    pod: str
    uid: str
    container: str
    restart: int


LogSink = Callable[[LogKey, str], None]
"""Takes the text that a container prints; whole lines, each with its line feed."""


class ContainerLogs:
    """Keeps output in memory, for the kubelet endpoint that a real API server asks."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str, str], dict[int, deque[tuple[str, str]]]] = {}
        self._uids: dict[tuple[str, str, str], str] = {}

    def append(self, of: LogKey, text: str) -> None:
        """Keep the text; a new pod of the same name starts afresh, and one earlier life is remembered."""
        key = (of.namespace, of.pod, of.container)
        if self._uids.get(key) != of.uid:
            self._uids[key], self._lines[key] = of.uid, {}
        lives = self._lines[key]
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        lives.setdefault(of.restart, deque(maxlen=MAX_LINES)).extend((time, line) for line in text.splitlines())
        lives.pop(of.restart - 2, None)

    def lines(
        self, namespace: str, pod: str, container: str, *, previous: bool = False
    ) -> tuple[tuple[str, str], ...] | None:
        """Return (time, line) pairs; None for a container, or a life of it, that never printed."""
        lives = self._lines.get((namespace, pod, container), {})
        wanted = max(lives, default=0) - int(previous)
        return tuple(lives[wanted]) if wanted in lives else None

    def forget(self, namespace: str, pod: str) -> None:
        """Drop what a pod that is gone has printed."""
        for key in [key for key in self._lines if key[:2] == (namespace, pod)]:
            del self._lines[key], self._uids[key]


ADDRESS = "127.0.0.1"
_PAUSE = 0.2
StatusOf = Callable[[str, str, str], Mapping[str, Any]]
"""Returns the status of a container by namespace, pod and name; an empty one of a container that is not here."""


class _Endpoint:
    """Answers ``/containerLogs/<namespace>/<pod>/<container>`` as a kubelet does."""

    def __init__(self, logs: ContainerLogs, status_of: StatusOf) -> None:
        self._logs, self._status_of = logs, status_of

    async def logs(self, request: web.Request) -> web.StreamResponse:
        key = (request.match_info["namespace"], request.match_info["pod"], request.match_info["container"])
        query = request.query
        previous = query.get("previous") == "true"
        kept = self._logs.lines(*key, previous=previous)
        if refusal := self._refusal(key, previous=previous, kept=kept is not None):
            return web.Response(status=400, text=refusal)
        lines = kept or ()
        if seconds := query.get("sinceSeconds"):
            since = (datetime.now(UTC) - timedelta(seconds=int(seconds))).isoformat()
            lines = tuple(line for line in lines if line[0] >= since)
        lines = lines[max(0, len(lines) - int(query.get("tailLines", len(lines)))) :]
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        stamped = query.get("timestamps") == "true"
        limit = int(query["limitBytes"]) if "limitBytes" in query else None
        await response.write(_format_lines(lines, stamped=stamped)[:limit])
        if query.get("follow") == "true":
            await self._follow(response, key, len(kept or ()), stamped=stamped)
        return response

    def _refusal(self, key: tuple[str, str, str], *, previous: bool, kept: bool) -> str:
        _, pod, container = key
        if previous:
            return "" if kept else f'previous terminated container "{container}" in pod "{pod}" not found'
        status = self._status_of(*key)
        waiting = None if status.get("lastState") else (status.get("state") or {}).get("waiting")
        return "" if waiting is None else explain_missing_log(container, pod, waiting.get("reason", ""))

    async def _follow(
        self, response: web.StreamResponse, key: tuple[str, str, str], seen: int, *, stamped: bool
    ) -> None:
        while True:
            running = "running" in (self._status_of(*key).get("state") or {})
            lines = self._logs.lines(*key) or ()
            await response.write(_format_lines(lines[seen:], stamped=stamped))
            seen = len(lines)
            if not running:
                return
            await asyncio.sleep(_PAUSE)

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def refuse(self, request: web.Request) -> web.Response:
        action = request.match_info["action"]
        return web.Response(status=501, text=f"{action}: simulated nodes have no processes")


def _format_lines(lines: tuple[tuple[str, str], ...], *, stamped: bool) -> bytes:
    return "".join(f"{time} {line}\n" if stamped else f"{line}\n" for time, line in lines).encode()


def _context(certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if certificate:
        context.load_cert_chain(*certificate)
    else:
        trustme.CA().issue_cert(ADDRESS).configure_cert(context)
    return context


@asynccontextmanager
async def kubelet_server(
    logs: ContainerLogs, status_of: StatusOf, certificate: tuple[Path, Path] | None = None
) -> AsyncIterator[int]:
    """Serve on a free port while the context lasts; the port is its value.

    Without a certificate and its key, PEM files, it shows a new one that no client can verify; most servers do not try.
    """
    endpoint = _Endpoint(logs, status_of)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", endpoint.logs)
    app.router.add_get("/healthz", endpoint.healthy)
    app.router.add_route("*", "/{action:exec|attach|portForward|run}/{rest:.*}", endpoint.refuse)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0, ssl_context=await asyncio.to_thread(_context, certificate))
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
