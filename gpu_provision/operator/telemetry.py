"""Output of the controller: log lines, Events, the status of stacks, metrics, and probes."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import yaml
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import ProvisionError, escape_control_characters
from gpu_provision.operator.status import Reason, StackObservation, condition_of, status_of

_MAX_MESSAGE = 1024  # characters; the API server's limit for an Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEvent:
    """One log line of the controller or of a stack; for a changed condition also a Kubernetes Event."""

    reason: str  # one word in CamelCase, as in Kubernetes Events
    message: str
    stack: str = ""  # name of the stack; empty for the controller itself
    is_warning: bool = False


EventSink = Callable[[StackEvent], None]


def condition_events(before: Mapping[str, Any], after: Mapping[str, Any], stack: str) -> Iterator[StackEvent]:
    """Yield an event for each condition that a new status turns on, and for the end of Degraded."""
    known = {each["type"]: each for each in before.get("conditions") or ()}
    for condition in after.get("conditions") or ():
        kind, earlier = condition["type"], known.get(condition["type"], {})
        is_other = (earlier.get("status"), earlier.get("reason")) != (condition["status"], condition["reason"])
        if is_other and condition["status"] == "True":
            reason, message = condition["reason"], condition["message"]
            yield StackEvent(reason=reason, message=message, stack=stack, is_warning=kind == "Degraded")
        elif kind == "Degraded" and earlier.get("status") == "True" and condition["status"] == "False":
            message = f"what stood in the way is over: {earlier['reason']}"
            yield StackEvent(reason="Recovered", message=message, stack=stack)


def record_event(cluster: KubeClient, stack: Manifest, event: StackEvent) -> None:
    """Create a Kubernetes Event; a failed write is ignored."""
    metadata, now = stack["metadata"], _timestamp()
    about = {key: stack[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    manifest = {
        "apiVersion": "v1",
        "kind": "Event",
        # Events of cluster-scoped objects are in this namespace.
        "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": escape_control_characters(event.message)[:_MAX_MESSAGE],
        "source": {"component": "gpu-provision"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with contextlib.suppress(ProvisionError):
        cluster.create(manifest)


@dataclass(slots=True)
class StackMetrics:
    """Metrics of one stack. Only its worker's thread sets them."""

    status: Mapping[str, Any] = field(default_factory=dict)  # the last reported status
    runs: int = 0  # ended runs
    failed: int = 0  # ended runs with a problem
    succeeded_at: float = 0.0  # unix time at which the stack was last ready; 0 for never
    needs: int = 0  # pending changes
    seconds: float = 0.0  # from the first pending change to the end of its run, over all runs
    _since: float = 0.0

    def record_status(self, status: Mapping[str, Any]) -> None:
        """Record a written status."""
        self.status = status
        if self._reason_if_true("Ready"):
            self.succeeded_at = time.time()

    def record_needs(self, number: int, now: float) -> None:
        """Record the number of pending changes, at a time of a monotonic clock."""
        if number and not self.needs:
            self._since = now
        self.needs = number

    def record_run(self, now: float, *, succeeded: bool) -> None:
        """Record the end of a run."""
        self.runs += 1
        self.failed += not succeeded
        self.seconds += now - self._since if self._since else 0.0
        self._since = now

    @property
    def reconciliation_status(self) -> int:
        """The value of gpu_operator_reconciliation_status, as in the reference."""
        if self._reason_if_true("Ready"):
            return 1
        if not self._reason_if_true("Degraded"):
            return 0
        return -1 if self.has_nfd_labels else -2

    @property
    def has_nfd_labels(self) -> bool:
        """Whether Node Feature Discovery has labelled a GPU node."""
        return self._reason_if_true("Degraded") not in {Reason.NO_GPU_NODES, Reason.NO_FEATURES}

    def value(self, source: str) -> float:
        """Return the value of a metric of `metrics.yaml`."""
        part, _, key = source.partition(".")
        return float((self.status.get(part) or {}).get(key, 0) if key else getattr(self, source))

    def _reason_if_true(self, condition: str) -> str:
        state = condition_of({"status": self.status}, condition)
        return str(state["reason"]) if state.get("status") == "True" else ""


_PAUSE_SECONDS = 1.0  # between two writes of a status, which limits the load of a rollout of a fleet


@dataclass(slots=True)
class StatusWriter:
    """Writes the status of one stack, at most once a second; the last status is always written."""

    cluster: KubeClient
    stack: Manifest
    on_event: EventSink  # receives the events of written conditions
    metrics: StackMetrics = field(default_factory=StackMetrics)
    _written: dict[str, Any] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _last_error: str = ""

    def __post_init__(self) -> None:
        """Start from the stack's present status."""
        self._written = self.stack.get("status") or {}

    def report(self, observation: StackObservation, now: float) -> float:
        """Write the status if it has changed; return the seconds until the next call, infinity if none is needed."""
        if now < self._not_before:
            return self._not_before - now
        status = status_of(observation, self._written, _timestamp())
        if status == self._written:
            return float("inf")
        self._not_before = now + _PAUSE_SECONDS
        name = str(self.stack["metadata"]["name"])
        try:
            self.cluster.merge_patch(
                ref_of(self.stack), {"status": _replacing_patch(self._written, status)}, part="status"
            )
        except NotFoundError:
            return float("inf")  # the stack is deleted
        except ProvisionError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                self.on_event(
                    StackEvent(reason="StatusNotWritten", message=self._last_error, stack=name, is_warning=True)
                )
            return _PAUSE_SECONDS
        self.metrics.record_status(status)
        for event in condition_events(self._written, status, name):
            self.on_event(event)
            record_event(self.cluster, self.stack, event)
        self._written = status
        return float("inf")


def _replacing_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that replaces the whole status."""
    gone = {key: None for key in before if key not in after}
    return gone | {
        key: _replacing_patch(before.get(key) or {}, value) if isinstance(value, Mapping) else value
        for key, value in after.items()
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ControllerMetrics(NamedTuple):
    """The metrics of a scrape: API requests since the start, and stacks, without any while another replica leads."""

    is_leader: bool
    requests: int
    retries: int
    stacks: Mapping[str, StackMetrics]


class Collector:
    """A prometheus_client collector of all metrics."""

    def __init__(self, read_metrics: Callable[[], ControllerMetrics]) -> None:
        """Store the source of the metrics."""
        self._read_metrics = read_metrics
        self._stack_metrics: dict[str, tuple[str, str]] = yaml.safe_load(
            Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8")
        )

    def collect(self) -> Iterator[Any]:
        """Yield every metric with its present value."""
        now = self._read_metrics()
        yield GaugeMetricFamily("gpu_provision_leader", "1 if this controller leads.", value=float(now.is_leader))
        yield CounterMetricFamily("gpu_provision_api_requests_total", "Requests to the API server.", value=now.requests)
        yield CounterMetricFamily("gpu_provision_api_retries_total", "Requests that were repeated.", value=now.retries)
        for name, (source, description) in self._stack_metrics.items():
            is_counter = name.endswith("_total") and "." not in source
            family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(name, description, labels=["stack"])
            for stack, figures in sorted(now.stacks.items()):
                family.add_metric([stack], figures.value(source))
            yield family


Probe = Callable[[], str]  # returns the reason of a failed probe; empty for success

ALL_ADDRESSES = "::"  # includes IPv4: pods have addresses of one family or of both
_ALL_IPV4_ADDRESSES = "0.0.0.0"  # noqa: S104 - its caller asks for all addresses
_MAX_CONNECTIONS = 32  # one thread each, with at most 6 MiB of headers, the limit of http.client
_CONNECTION_SECONDS = 10.0  # from accept to close; the kubelet's probes time out after 5 s


class _Server(ThreadingMixIn, WSGIServer):
    """Closes old connections, and the oldest one above the limit, so that slow clients cannot block probes."""

    daemon_threads = True
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._since: dict[socket.socket, float] = {}  # oldest first; other threads remove their own
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Accept IPv4 connections on an IPv6 socket, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._since[request] = time.monotonic()
        _shut_down([*self._since.copy()][:-_MAX_CONNECTIONS])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close old connections; `serve_forever` calls this method twice a second."""
        until = time.monotonic() - _CONNECTION_SECONDS
        _shut_down(request for request, since in self._since.copy().items() if since < until)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._since.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors other than lost and slow clients."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _shut_down(requests: Iterable[socket.socket]) -> None:
    """End the threads that wait for these clients."""
    for request in requests:
        with contextlib.suppress(OSError):  # closed meanwhile
            request.shutdown(socket.SHUT_RDWR)


class _ProbeHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a probe comes every few seconds."""


def serve(
    host: str, port: int, *, read_metrics: Callable[[], ControllerMetrics], is_alive: Probe, is_ready: Probe
) -> int:
    """Serve metrics and probes from a daemon thread; return the port, which the system chooses for 0.

    ``host`` is an address or `ALL_ADDRESSES`, which works without IPv6, too. Raises OSError for an unusable address.
    """
    registry = CollectorRegistry()
    registry.register(Collector(read_metrics))
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

    if host == ALL_ADDRESSES and not socket.has_dualstack_ipv6():
        host = _ALL_IPV4_ADDRESSES
    server = make_server(host, port, answer, server_class=_Server, handler_class=_ProbeHandler)
    threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
    return int(server.server_port)
