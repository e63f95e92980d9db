"""Where kubelet and Prometheus ask: /healthz, /readyz, /metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpu_provision.operator.metrics import Collector, Snapshot

Question = Callable[[], str]
"""Answers why not; an empty string if all is well."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
        """A probe every few seconds is no news."""


def serve(host: str, port: int, *, look: Callable[[], Snapshot], is_alive: Question, is_ready: Question) -> int:
    """Answer from a thread that ends with the process; return the port, which the system chooses for 0.

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

    server = make_server(host, port, answer, server_class=_Server, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
    return int(server.server_port)
