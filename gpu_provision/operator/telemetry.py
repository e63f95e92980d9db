"""Metrics of a controller and its stacks for Prometheus, and the HTTP endpoint for them and for probes."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpu_provision.operator.status import Reason


@dataclass(slots=True)
class StackMetrics:
    """Figures of one stack. Each is set by its worker's thread alone.

    Attributes:
        status: The last that was reported.
        runs: Runs that have ended.
        failed: Those of them that did not end as declared.
        succeeded_at: When the stack was last as declared, in unix seconds; 0 for never.
        needs: Number of things to be done.
        seconds: From when something was to be done until the end of the run that did it, over all runs.
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0
    failed: int = 0
    succeeded_at: float = 0.0
    needs: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    def take_status(self, status: Mapping[str, Any]) -> None:
        """Note what is reported."""
        self.status = status
        if self.is_true("Ready"):
            self.succeeded_at = time.time()

    def take_needs(self, number: int, now: float) -> None:
        """Record the number of pending changes, at a time of a monotonic clock."""
        if number and not self.needs:
            self._since = now
        self.needs = number

    def take_run(self, now: float, *, is_well: bool) -> None:
        """Note the end of a run."""
        self.runs += 1
        self.failed += not is_well
        self.seconds += now - self._since if self._since else 0.0
        self._since = now

    def is_true(self, condition: str) -> bool:
        """Whether a condition holds."""
        return any(each["type"] == condition and each["status"] == "True" for each in self.status.get("conditions", ()))

    def reason(self, condition: str) -> str:
        """Return the reason of a condition."""
        found = (each["reason"] for each in self.status.get("conditions", ()) if each["type"] == condition)
        return str(next(found, ""))


READY, WORKING, FAILED, NO_NODES = 1, 0, -1, -2
"""Values of gpu_operator_reconciliation_status, as in the reference."""


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    """What a scrape tells.

    Attributes:
        stacks: Name of a stack -> its figures; empty while another controller leads.
        requests: API requests since the process began.
        retries: How many of them were repetitions of requests that failed.
    """

    is_leader: bool
    requests: int
    retries: int
    stacks: Mapping[str, StackMetrics]


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    help: str
    value: Callable[[StackMetrics], float]
    is_counter: bool = False


def _nodes(key: str) -> Callable[[StackMetrics], float]:
    return lambda figures: float((figures.status.get("nodes") or {}).get(key, 0))


def _rollout(key: str) -> Callable[[StackMetrics], float]:
    return lambda figures: float((figures.status.get("rollout") or {}).get(key, 0))


def reconciliation_status(figures: StackMetrics) -> float:
    """Return how a stack is: as declared, on the way, broken, or without nodes to look after."""
    if figures.is_true("Ready"):
        return READY
    if not figures.is_true("Degraded"):
        return WORKING
    return NO_NODES if figures.reason("Degraded") in {Reason.NO_GPU_NODES, Reason.NO_FEATURES} else FAILED


_METRICS = (
    _Metric("gpu_operator_gpu_nodes_total", "GPU nodes that the stack looks after.", _nodes("total")),
    _Metric("gpu_provision_ready_nodes", "Those of them on which everything is ready.", _nodes("ready")),
    _Metric("gpu_provision_allocatable_gpus", "GPUs that these nodes offer to pods.", _nodes("gpus")),
    _Metric(
        "gpu_operator_reconciliation_status",
        "1: as declared. 0: on the way. -1: failed. -2: no GPU node, or none that Node Feature Discovery has labelled.",
        reconciliation_status,
    ),
    _Metric("gpu_operator_reconciliation_total", "Runs that have ended.", lambda each: each.runs, is_counter=True),
    _Metric(
        "gpu_operator_reconciliation_failed_total",
        "Runs that did not end as declared.",
        lambda each: each.failed,
        is_counter=True,
    ),
    _Metric(
        "gpu_operator_reconciliation_last_success_ts_seconds",
        "When the stack was last as declared, in unix seconds.",
        lambda each: each.succeeded_at,
    ),
    _Metric(
        "gpu_operator_reconciliation_has_nfd_labels",
        "1 if Node Feature Discovery has labelled a GPU node.",
        lambda each: float(each.reason("Degraded") not in {Reason.NO_GPU_NODES, Reason.NO_FEATURES}),
    ),
    _Metric(
        "gpu_provision_needs", "Objects, labels and validations that are not as declared.", lambda each: each.needs
    ),
    _Metric(
        "gpu_provision_reconciliation_seconds_total",
        "Seconds from when something was to be done to the end of the run that did it.",
        lambda each: each.seconds,
        is_counter=True,
    ),
    _Metric("gpu_operator_nodes_upgrades_in_progress", "Nodes whose driver is being replaced.", _rollout("underWay")),
    _Metric("gpu_operator_nodes_upgrades_done", "Nodes with the driver that is declared.", _rollout("done")),
    _Metric("gpu_operator_nodes_upgrades_failed", "Nodes where that has failed.", _rollout("failed")),
    _Metric("gpu_operator_nodes_upgrades_pending", "Nodes that wait for their turn.", _rollout("waiting")),
)


class Collector:
    """Answers prometheus_client's question for all metrics."""

    def __init__(self, look: Callable[[], ControllerMetrics]) -> None:
        """Keep what tells the figures."""
        self._look = look

    def collect(self) -> Iterator[Any]:
        """Yield every metric as it is now."""
        now = self._look()
        yield GaugeMetricFamily("gpu_provision_leader", "1 if this controller leads.", value=float(now.is_leader))
        yield CounterMetricFamily("gpu_provision_api_requests_total", "Requests to the API server.", value=now.requests)
        yield CounterMetricFamily("gpu_provision_api_retries_total", "Requests that were repeated.", value=now.retries)
        for metric in _METRICS:
            family = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            found = family(metric.name, metric.help, labels=["stack"])
            for stack, figures in sorted(now.stacks.items()):
                found.add_metric([stack], float(metric.value(figures)))
            yield found


Question = Callable[[], str]
"""Answers why not; an empty string if all is well."""


EVERYWHERE = "::"
"""Stands for every address, of IPv4 as well: clusters have pods of the one, of the other, or of both."""

_EVERYWHERE_WITHOUT_IPV6 = "0.0.0.0"  # noqa: S104 - as its user asks for
_MOST_CONNECTIONS = 32  # a thread each, and a head of 6 MiB at most, as http.client reads it
_CONNECTION_SECONDS = 10.0  # from accept to close, whatever the client sends meanwhile; kubelet gives up after 5 s


class _Server(ThreadingMixIn, WSGIServer):
    """Closes connections that are too old, and the oldest one for one too many: slow clients keep no probe waiting."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._since: dict[socket.socket, float] = {}  # oldest first; other threads take theirs out
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._since[request] = time.monotonic()
        _end([*self._since.copy()][:-_MOST_CONNECTIONS])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that are too old; `serve_forever` calls it twice a second."""
        until = time.monotonic() - _CONNECTION_SECONDS
        _end(request for request, since in self._since.copy().items() if since < until)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._since.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report mistakes in the answers; that a client has gone, or was too slow, is not one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _end(requests: Iterable[socket.socket]) -> None:
    """Wake the threads that wait for these clients, which then end."""
    for request in requests:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            request.shutdown(socket.SHUT_RDWR)


class _DualStackServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take connections over IPv4, too, where the address stands for every one."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _ProbeHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
        """Log nothing: a probe comes every few seconds."""


def serve(
    host: str, port: int, *, look: Callable[[], ControllerMetrics], is_alive: Question, is_ready: Question
) -> int:
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
    kind = _DualStackServer if ":" in host else _Server
    return make_server(host, port, answer, server_class=kind, handler_class=_ProbeHandler)
