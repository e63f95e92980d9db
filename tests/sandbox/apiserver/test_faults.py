"""Faults of the API server, declared in a ConfigMap."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sandbox.apiserver.conftest import Running, eventually

HOME = "/api/v1/namespaces/kube-system/configmaps"
NODES = "/api/v1/nodes"


@pytest.fixture
def declare(server: Running) -> Iterator[Any]:
    def declared(text: str) -> None:
        body = {"metadata": {"name": "sandbox-faults"}, "data": {"api-server": text}}
        assert server.ask("POST", HOME, body).code == 201

    yield declared
    assert server.ask("DELETE", f"{HOME}/sandbox-faults").code == 200


def test_throttling_names_the_seconds_to_wait(server: Running, declare: Any) -> None:
    """429 for the next requests, then success."""
    declare("throttle: {requests: 2, retry_after: 3}")
    answers = [server.ask("GET", NODES) for _ in range(3)]
    assert [answer.code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["Retry-After"] == "3"
    assert answers[0].body["details"]["retryAfterSeconds"] == 3


def test_a_fault_can_be_limited_and_taken_back(server: Running, declare: Any) -> None:
    """By verb, path and user agent; the ConfigMap itself is always reachable."""
    declare("unavailable: {verbs: [GET], paths: /nodes, agents: victim}")
    assert server.ask("GET", NODES, agent="victim/1").code == 503
    assert server.ask("GET", NODES, agent="other/1").code == 200
    assert server.ask("GET", "/api/v1/namespaces", agent="victim/1").code == 200
    patch = {"data": {"api-server": "unavailable: true"}}
    assert server.ask("PATCH", f"{HOME}/sandbox-faults", patch, kind="application/merge-patch+json").code == 200
    assert server.ask("GET", NODES).code == 503
    assert server.ask("GET", f"{HOME}/sandbox-faults").code == 200


def test_a_dropped_connection_gives_no_answer(server: Running, declare: Any) -> None:
    """Without a write."""
    declare("drop: {requests: 1, verbs: [POST]}")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        server.ask("POST", NODES, {"metadata": {"name": "lost"}})
    assert server.ask("GET", f"{NODES}/lost").code == 404


def test_a_rate_lets_the_first_requests_of_a_second_pass(server: Running, declare: Any) -> None:
    """Further requests are throttled."""
    declare("throttle: {rate: 2}")
    assert [server.ask("GET", NODES).code for _ in range(2)] == [200, 200]
    eventually(lambda: server.ask("GET", NODES).code == 429, "three requests within a second")


def test_a_declaration_that_cannot_be_read_is_no_fault(server: Running, declare: Any) -> None:
    declare("a: [")
    assert server.ask("GET", NODES).code == 200


def test_a_running_watch_ends_with_an_error_when_it_expires(server: Running, declare: Any) -> None:
    """The client lists again, as after a real 410."""
    connection = server.connection()
    headers = {"Authorization": f"Bearer {server.server.tokens.token()}"}
    connection.request("GET", "/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Ddefault", headers=headers)
    response = connection.getresponse()
    assert json.loads(response.readline())["type"] == "ADDED"
    declare("expire-watches: true")
    event = json.loads(response.readline())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    connection.close()
