"""Where kubelet and Prometheus ask: /healthz, /readyz, /metrics."""

from __future__ import annotations

import socket
import threading
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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _BothServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take connections over IPv4, too, where the address stands for every one."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Quiet(WSGIRequestHandler):
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
    return make_server(host, port, answer, server_class=kind, handler_class=_Quiet)
