from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gpu_provision.kube.client import KubeClient
from gpu_provision.operator import telemetry
from gpu_provision.operator.telemetry import (
    ALL_ADDRESSES,
    Collector,
    ControllerMetrics,
    StackEvent,
    StackMetrics,
    condition_events,
    record_event,
    serve,
)
from tests.hostile import MIXED, MIXED_SHOWN

Conditions = dict[str, tuple[str, str]]


def status_with(conditions: Conditions) -> dict[str, Any]:
    return {
        "conditions": [
            {"type": kind, "status": each, "reason": why, "message": ""} for kind, (each, why) in conditions.items()
        ]
    }


def figures(conditions: Conditions) -> StackMetrics:
    found = StackMetrics()
    counts = {"nodes": {"total": 4, "ready": 3, "gpus": 24}, "rollout": {"done": 1, "underWay": 2}}
    found.record_status(status_with(conditions) | counts)
    return found


SNAPSHOT = ControllerMetrics(is_leader=True, requests=7, retries=2, stacks={})
READY, WELL = ("True", "AllReady"), ("False", "AsExpected")


def test_every_stack_has_every_metric_in_prometheus_own_words() -> None:
    found = figures({"Ready": READY})
    found.record_needs(2, 10.0)
    found.record_run(14.0, succeeded=False)
    registry = CollectorRegistry()
    registry.register(Collector(lambda: SNAPSHOT._replace(stacks={"main": found})))
    lines = generate_latest(registry).decode().splitlines()
    assert {"gpu_provision_leader 1.0", "gpu_provision_api_requests_total 7.0"} <= {*lines}
    for metric in (
        *("gpu_operator_gpu_nodes_total 4.0", "gpu_provision_ready_nodes 3.0"),
        *("gpu_operator_reconciliation_status 1.0", "gpu_operator_nodes_upgrades_in_progress 2.0"),
        *("gpu_operator_reconciliation_total 1.0", "gpu_operator_reconciliation_failed_total 1.0"),
        "gpu_provision_reconciliation_seconds_total 4.0",
    ):
        assert metric.replace(" ", '{stack="main"} ') in lines


@pytest.mark.parametrize(
    ("conditions", "value"),
    [
        ({"Ready": READY}, 1),
        ({"Ready": ("False", "Converging"), "Degraded": WELL}, 0),
        ({"Degraded": ("True", "NodesFailed")}, -1),
        ({"Degraded": ("True", "NoGPUNodes")}, -2),
        ({}, 0),
    ],
)
def test_the_status_of_the_reference_means_what_it_means_there(conditions: dict[str, Any], value: int) -> None:
    found = figures(conditions)
    assert found.reconciliation_status == value
    assert (found.succeeded_at > 0.0) is (value == 1)


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(name: str) -> None:
    collector = Collector(lambda: SNAPSHOT._replace(stacks={"main": StackMetrics()}))
    known = {sample.name for family in collector.collect() for sample in family.samples}
    text = (Path(__file__).resolve().parents[2] / "examples/operator/monitoring" / name).read_text()
    asked = set(re.findall(r"\bgpu_(?:operator|provision)_\w+", text))
    assert asked
    assert asked <= known


def port_of(address: str, *, dead: str = "", unready: str = "") -> int:
    return serve(address, 0, read_metrics=lambda: SNAPSHOT, is_alive=lambda: dead, is_ready=lambda: unready)


def get(address: str, port: int, path: str = "/healthz") -> str:
    place = f"[{address}]" if ":" in address else address
    with urlopen(f"http://{place}:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_everywhere_is_both_families_and_loopback_alone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPv6 the server listens on IPv4."""
    if socket.has_dualstack_ipv6():
        port = port_of(ALL_ADDRESSES)
        assert {get("127.0.0.1", port), get("::1", port)} == {"ok\n"}
    monkeypatch.setattr(telemetry.socket, "has_dualstack_ipv6", lambda: False)
    assert get("127.0.0.1", port_of(ALL_ADDRESSES)) == "ok\n"
    port = port_of("127.0.0.1")
    assert "gpu_provision_api_requests_total 7.0" in get("127.0.0.1", port, "/metrics")
    with pytest.raises(OSError, match=r"refused|unreachable|unsupported|assign"):
        get("::1", port)


def test_a_failed_probe_names_the_reason() -> None:
    port = port_of("127.0.0.1", dead="silent for 200 s", unready="no leader")
    for path, code, text in (
        ("/healthz", 503, "silent for 200 s\n"),
        ("/readyz", 503, "no leader\n"),
        ("/", 404, "there are /healthz, /readyz and /metrics\n"),
    ):
        with pytest.raises(HTTPError) as refused:
            get("127.0.0.1", port, path)
        assert (refused.value.code, refused.value.read().decode()) == (code, text)


@contextlib.contextmanager
def half_requests(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Open connections one by one, each with an incomplete request."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(number)]
        for connection in opened:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        yield opened


def receive(connection: socket.socket, seconds: float) -> bytes | None:
    """Return the data of a connection within a time; None without data, no bytes for a closed one."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1)
    except (BlockingIOError, TimeoutError):
        return None


def test_slow_clients_are_closed_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no more data or, as in slowloris, single bytes."""
    monkeypatch.setattr(telemetry, "_CONNECTION_SECONDS", 0.1)
    port = port_of("127.0.0.1")
    with half_requests(port, 5) as (drip, *silent):
        assert [connection.recv(1) for connection in silent] == [b""] * 4
        with contextlib.suppress(ConnectionError):
            while receive(drip, 0.02) is None:
                drip.sendall(b"x")
    monkeypatch.setattr(telemetry, "_CONNECTION_SECONDS", 60.0)
    assert get("127.0.0.1", port) == "ok\n"


def test_a_probe_is_answered_while_slow_clients_hold_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections replace the oldest ones, and the number of threads is bounded."""
    monkeypatch.setattr(telemetry, "_MAX_CONNECTIONS", 4)
    monkeypatch.setattr(telemetry, "_CONNECTION_SECONDS", 600.0)
    before, port = {*threading.enumerate()}, port_of("127.0.0.1")
    with half_requests(port, 12) as opened:
        assert get("127.0.0.1", port) == "ok\n"
        evicted, held = opened[:9], opened[9:]
        assert [connection.recv(1) for connection in evicted] == [b""] * 9
        assert [receive(connection, 0.0) for connection in held] == [None] * 3
        give_up = time.monotonic() + 60
        while len({*threading.enumerate()} - before) > len(held) + 1:  # the server's own
            assert time.monotonic() < give_up


FINE = {"Ready": READY, "Degraded": WELL}
BROKEN = {"Ready": ("False", "NodesFailed"), "Degraded": ("True", "NodesFailed")}
OVER = "what stood in the way is over: NodesFailed"


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (FINE, FINE, []),
        ({}, FINE, [("AllReady", "", False)]),
        (FINE, BROKEN, [("NodesFailed", "", True)]),
        (BROKEN, FINE, [("AllReady", "", False), ("Recovered", OVER, False)]),
        (BROKEN, {"Degraded": ("True", "InvalidSpec")}, [("InvalidSpec", "", True)]),
    ],
    ids=["no news", "ready", "trouble", "recovered", "another trouble"],
)
def test_events_tell_what_began_and_what_is_over(before: Any, after: Any, events: list[Any]) -> None:
    found = condition_events(status_with(before), status_with(after), "main")
    assert [(event.reason, event.message, event.is_warning) for event in found] == events


def test_an_event_shows_what_would_steer_a_terminal() -> None:
    """A message may have a pod's output, with escape sequences."""
    created: list[dict[str, Any]] = []
    cluster = cast("KubeClient", SimpleNamespace(create=created.append))
    stack = {"apiVersion": "v1", "kind": "GPUStack", "metadata": {"name": "main", "uid": "u"}}
    record_event(cluster, stack, StackEvent(reason="Failed", message=MIXED * 100))
    assert created[0]["message"].startswith(MIXED_SHOWN)
    assert len(created[0]["message"]) == 1024
