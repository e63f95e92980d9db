"""Where kubelet and Prometheus ask: /healthz, /readyz, /metrics."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpu_provision.operator.metrics import Collector, Snapshot

Question = Callable[[], str]
"""Answers why not; an empty string if all is well."""


EVERYWHERE = "::"
"""Stands for every address, of IPv4 as well: clusters have pods of the one, of the other, or of both."""

_EVERYWHERE_WITHOUT_IPV6 = "0.0.0.0"  # noqa: S104 - as its user asks for


_MOST_CONNECTIONS = 32  # a thread each
_CONNECTION_SECONDS = 10.0  # from accept to close, whatever the client sends meanwhile; kubelet gives up after 5 s
_MOST_HEAD_BYTES = 16 * 1024  # request line and headers


class _Server(ThreadingMixIn, WSGIServer):
    """Closes the oldest connection for one too many, so that slow clients cannot keep a probe from its answer."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._since: dict[socket.socket, float] = {}  # oldest first; other threads take theirs out
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            _end([*self._since.copy()][:1])
            self._room.acquire()  # the thread of a closed connection ends at once
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that are too old; `serve_forever` calls it twice a second."""
        until = time.monotonic() - _CONNECTION_SECONDS
        _end(request for request, since in self._since.copy().items() if since < until)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        if self._since.pop(request, None) is not None:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report mistakes in the answers; that a client has gone, or was too slow, is not one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _end(requests: Iterable[socket.socket]) -> None:
    """Wake the threads that wait for these clients, which then end."""
    for request in requests:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            request.shutdown(socket.SHUT_RDWR)


class _BothServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take connections over IPv4, too, where the address stands for every one."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Head(io.BufferedReader):
    """What a client sends, as far as it is read."""

    _left = _MOST_HEAD_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        if not self._left:
            message = f"a request of more than {_MOST_HEAD_BYTES} bytes"
            raise ConnectionAbortedError(message)
        return line


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.connection.makefile("rb", 0))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
        """A probe every few seconds is no news."""


def serve(host: str, port: int, *, look: Callable[[], Snapshot], is_alive: Question, is_ready: Question) -> int:
    """Answer from a thread that ends with the process; return the port, which the system chooses for 0.

    Args:
        host: An address, or `EVERYWHERE`, which on a machine without IPv6 means every address that it has.

    Raises:
        OSError: The address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(Collector(look))
    metrics = make_wsgi_app(registry)
    questions = {"/healthz": is_alive, "/readyz": is_ready}

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environment["PATH_INFO"]
        if path == "/metrics":
            return list(metrics(environment, start))
        if path not in questions:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there are /healthz, /readyz and /metrics\n"]
        reason = questions[path]()
        start("503 Service Unavailable" if reason else "200 OK", [("Content-Type", "text/plain")])
        return [f"{reason or 'ok'}\n".encode()]

    server = _server(host, port, answer)
    threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
    return int(server.server_port)


def _server(host: str, port: int, answer: Callable[..., Iterable[bytes]]) -> WSGIServer:
    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        host = _EVERYWHERE_WITHOUT_IPV6
    kind = _BothServer if ":" in host else _Server
    return make_server(host, port, answer, server_class=kind, handler_class=_Handler)
