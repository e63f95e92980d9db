"""Where kubelet and Prometheus ask, whichever family of addresses their cluster has."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gpu_provision.operator import endpoint
from gpu_provision.operator.endpoint import EVERYWHERE, serve
from gpu_provision.operator.metrics import Snapshot

SNAPSHOT = Snapshot(is_leader=True, requests=7, retries=2, stacks={})


def port_of(address: str, *, dead: str = "", unready: str = "") -> int:
    return serve(address, 0, look=lambda: SNAPSHOT, is_alive=lambda: dead, is_ready=lambda: unready)


def get(address: str, port: int, path: str = "/healthz") -> str:
    place = f"[{address}]" if ":" in address else address
    with urlopen(f"http://{place}:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_everywhere_is_both_families_of_addresses() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = port_of(EVERYWHERE)
    assert {get("127.0.0.1", port), get("::1", port)} == {"ok\n"}


def test_everywhere_is_what_there_is_on_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint.socket, "has_dualstack_ipv6", lambda: False)
    assert get("127.0.0.1", port_of(EVERYWHERE)) == "ok\n"


def test_loopback_is_loopback_alone() -> None:
    port = port_of("127.0.0.1")
    assert "gpu_provision_api_requests_total 7.0" in get("127.0.0.1", port, "/metrics")
    with pytest.raises(OSError, match=r"refused|unreachable|unsupported|assign"):
        get("::1", port)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_is_told_why_not(path: str) -> None:
    port = port_of("127.0.0.1", dead="silent for 200 s", unready="silent for 200 s")
    with pytest.raises(HTTPError, match="503") as refused:
        get("127.0.0.1", port, path)
    assert refused.value.read() == b"silent for 200 s\n"


def test_anything_else_is_told_what_there_is() -> None:
    with pytest.raises(HTTPError, match="404"):
        get("127.0.0.1", port_of("127.0.0.1"), "/")


@contextlib.contextmanager
def half_requests(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Open so many connections, one after the other, that begin a request and do not end it."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(number)]
        for connection in opened:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        yield opened


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_slow_clients_are_closed_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they send nothing more or, as slowloris does, a byte now and then."""
    monkeypatch.setattr(endpoint, "_CONNECTION_SECONDS", 0.1)
    port = port_of("127.0.0.1")
    with half_requests(port, 5) as (drip, *silent):
        assert [connection.recv(1) for connection in silent] == [b""] * 4
        drip.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            while received(drip) is None:
                drip.sendall(b"x")
    assert get("127.0.0.1", port) == "ok\n"


def received(connection: socket.socket) -> bytes | None:
    try:
        return connection.recv(1)
    except TimeoutError:
        return None


def test_a_probe_is_answered_while_slow_clients_hold_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connections end for new ones, and no more threads run than there are places."""
    monkeypatch.setattr(endpoint, "_MOST_CONNECTIONS", 4)
    monkeypatch.setattr(endpoint, "_CONNECTION_SECONDS", 600.0)
    before, port = {*threading.enumerate()}, port_of("127.0.0.1")
    with half_requests(port, 12) as opened:
        assert get("127.0.0.1", port) == "ok\n"
        evicted, held = opened[:9], opened[9:]
        assert [connection.recv(1) for connection in evicted] == [b""] * 9
        assert [is_open(connection) for connection in held] == [True] * 3
        give_up = time.monotonic() + 60
        while len({*threading.enumerate()} - before) > len(held) + 1:  # the server's own
            assert time.monotonic() < give_up


def test_a_request_without_end_is_not_read_for_ever() -> None:
    port, begun = port_of("127.0.0.1"), b"GET /healthz HTTP/1.1\r\nX: "
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(begun.ljust(endpoint._MOST_HEAD_BYTES, b"x"))
        assert connection.recv(1) == b""
