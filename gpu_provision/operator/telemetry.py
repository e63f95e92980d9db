"""What a controller reports: log lines, Events, the status of its stacks, metrics, and answers to probes."""

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
from gpu_provision.model.findings import ProvisionError, visible
from gpu_provision.operator.status import Reason, StackObservation, condition_of, status_of

_MESSAGE = 1024  # characters: what the API server takes of an Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEvent:
    """Something that happened."""

    reason: str  # one word in CamelCase, as Events have it
    message: str
    stack: str = ""  # name of the stack that it is about; empty if it is about the controller itself
    is_warning: bool = False


EventSink = Callable[[StackEvent], None]


def condition_events(before: Mapping[str, Any], after: Mapping[str, Any], stack: str) -> Iterator[StackEvent]:
    """Yield what became of a stack between two statuses: what began, and what is over."""
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


def record_event(cluster: KubeClient, stack: Manifest, note: StackEvent) -> None:
    """Make an Event of a note. One that cannot be written is lost, as Events may be."""
    metadata, now = stack["metadata"], _timestamp()
    about = {key: stack[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        # Events of objects without a namespace are in this one.
        "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning" if note.is_warning else "Normal",
        "reason": note.reason,
        "message": visible(note.message)[:_MESSAGE],
        "source": {"component": "gpu-provision"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with contextlib.suppress(ProvisionError):
        cluster.create(event)


@dataclass(slots=True)
class StackMetrics:
    """Figures of one stack. Each is set by its worker's thread alone."""

    status: Mapping[str, Any] = field(default_factory=dict)  # the last that was reported
    runs: int = 0  # runs that have ended
    failed: int = 0  # those of them that did not end as declared
    succeeded_at: float = 0.0  # when the stack was last as declared, in unix seconds; 0 for never
    needs: int = 0  # number of things to be done
    seconds: float = 0.0  # from when something was to be done until the end of the run that did it, over all runs
    _since: float = 0.0

    def take_status(self, status: Mapping[str, Any]) -> None:
        """Note what is reported."""
        self.status = status
        if self._reason_if_true("Ready"):
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
        found = condition_of({"status": self.status}, condition)
        return str(found["reason"]) if found.get("status") == "True" else ""


_PAUSE_SECONDS = 1.0  # between two writes of a status: a reader sees no more, and a rollout of a fleet writes no more


@dataclass(slots=True)
class StatusWriter:
    """Keeps the status of one stack current: the last word is always written, those in between at most every second."""

    cluster: KubeClient
    stack: Manifest
    take: EventSink  # receives what became of the stack, once it is written
    figures: StackMetrics = field(default_factory=StackMetrics)
    _written: dict[str, Any] = field(default_factory=dict)
    _not_before: float = float("-inf")
    _trouble: str = ""

    def __post_init__(self) -> None:
        """Start from what is there."""
        self._written = self.stack.get("status") or {}

    def report(self, observation: StackObservation, now: float) -> float:
        """Write the status if it has changed; return in how many seconds to ask again, infinity for no need to."""
        if now < self._not_before:
            return self._not_before - now
        status = status_of(observation, self._written, _timestamp())
        if status == self._written:
            return float("inf")
        self._not_before = now + _PAUSE_SECONDS
        name = str(self.stack["metadata"]["name"])
        try:
            self.cluster.merge(ref_of(self.stack), {"status": _replacing_patch(self._written, status)}, part="status")
        except NotFoundError:
            return float("inf")  # the stack has gone
        except ProvisionError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.take(StackEvent(reason="StatusNotWritten", message=self._trouble, stack=name, is_warning=True))
            return _PAUSE_SECONDS
        self.figures.take_status(status)
        for note in condition_events(self._written, status, name):
            self.take(note)
            record_event(self.cluster, self.stack, note)
        self._written = status
        return float("inf")


def _replacing_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that leaves nothing of what was there before."""
    gone = {key: None for key in before if key not in after}
    return gone | {
        key: _replacing_patch(before.get(key) or {}, value) if isinstance(value, Mapping) else value
        for key, value in after.items()
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ControllerMetrics(NamedTuple):
    """What a scrape tells: API requests since the process began, and the stacks; none while another one leads."""

    is_leader: bool
    requests: int
    retries: int  # requests that were repeated
    stacks: Mapping[str, StackMetrics]


class Collector:
    """Answers prometheus_client's question for all metrics."""

    def __init__(self, look: Callable[[], ControllerMetrics]) -> None:
        """Keep what tells the figures."""
        self._look = look
        self._stack_metrics: dict[str, tuple[str, str]] = yaml.safe_load(
            Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8")
        )

    def collect(self) -> Iterator[Any]:
        """Yield every metric as it is now."""
        now = self._look()
        yield GaugeMetricFamily("gpu_provision_leader", "1 if this controller leads.", value=float(now.is_leader))
        yield CounterMetricFamily("gpu_provision_api_requests_total", "Requests to the API server.", value=now.requests)
        yield CounterMetricFamily("gpu_provision_api_retries_total", "Requests that were repeated.", value=now.retries)
        for name, (source, description) in self._stack_metrics.items():
            is_counter = name.endswith("_total") and "." not in source
            found = (CounterMetricFamily if is_counter else GaugeMetricFamily)(name, description, labels=["stack"])
            for stack, figures in sorted(now.stacks.items()):
                found.add_metric([stack], figures.value(source))
            yield found


Question = Callable[[], str]  # answers why not; an empty string if all is well

EVERYWHERE = "::"  # stands for every address, of IPv4 as well: clusters have pods of the one, of the other, or of both

_EVERYWHERE_WITHOUT_IPV6 = "0.0.0.0"  # noqa: S104 - as its user asks for
_MOST_CONNECTIONS = 32  # a thread each, and a head of 6 MiB at most, as http.client reads it
_CONNECTION_SECONDS = 10.0  # from accept to close, whatever the client sends meanwhile; kubelet gives up after 5 s


class _Server(ThreadingMixIn, WSGIServer):
    """Closes connections that are too old, and the oldest one for one too many: slow clients keep no probe waiting."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._since: dict[socket.socket, float] = {}  # oldest first; other threads take theirs out
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Take connections over IPv4, too, where the address stands for every one."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

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


class _ProbeHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
        """Log nothing: a probe comes every few seconds."""


def serve(
    host: str, port: int, *, look: Callable[[], ControllerMetrics], is_alive: Question, is_ready: Question
) -> int:
    """Answer from a thread that ends with the process; return the port, which the system chooses for 0.

    ``host`` is an address, or `EVERYWHERE`, also on a machine without IPv6. Raises OSError if it cannot be used.
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

    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        host = _EVERYWHERE_WITHOUT_IPV6
    server = make_server(host, port, answer, server_class=_Server, handler_class=_ProbeHandler)
    threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
    return int(server.server_port)
