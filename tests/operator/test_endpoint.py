"""Where kubelet and Prometheus ask, whichever family of addresses their cluster has."""

from __future__ import annotations

import socket
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
