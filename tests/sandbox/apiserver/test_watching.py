"""Watches over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from tests.sandbox.apiserver.conftest import POD, Running, eventually

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


class Watching:
    """The events of a watch, collected in the background."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        """Read until the stream ends."""
        self.events: list[dict[str, Any]] = []
        self._response = response
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(http.client.IncompleteRead, OSError):  # we have hung up
            for line in self._response:
                self.events.append(json.loads(line))

    def seen(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the first events once there are ``count`` of them."""
        eventually(lambda: len(self.events) >= count, f"{count} events, got {self.events}")
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in self.events]


@contextlib.contextmanager
def watching(server: Running, path: str, query: str, *, seconds: int = 0) -> Iterator[Watching]:
    """Watch a path until the server ends that by itself, if it is to in so many seconds, or we hang up."""
    connection = server.connection()
    headers = {"Authorization": f"Bearer {server.server.tokens.token()}"}
    connection.request("GET", f"{path}?watch=1&timeoutSeconds={seconds or 600}&{query}", headers=headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    watch = Watching(response)
    try:
        yield watch
    finally:
        if not seconds and connection.sock:
            connection.sock.shutdown(socket.SHUT_RDWR)
        watch.thread.join(60)
        connection.close()
        assert not watch.thread.is_alive()


def test_bookmarks_and_initial_events_come_when_asked_for(server: Running) -> None:
    """The bookmark after the initial events carries its annotation; another comes before the end."""
    query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    query += "&fieldSelector=metadata.name%3Ddefault"
    with watching(server, "/api/v1/namespaces", query, seconds=3) as watch:
        assert watch.seen(2) == [("ADDED", "default"), ("BOOKMARK", "")]
    assert watch.events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert watch.events[-1]["type"] == "BOOKMARK"
    assert server.ask("GET", f"{CONFIGMAPS}?watch=1&sendInitialEvents=true").code == 422


def test_a_version_out_of_reach_is_refused(server: Running) -> None:
    """410 for the forgotten past, as an event; 504 for the future."""
    server.run(_expire(server))
    answer = server.ask("GET", f"{CONFIGMAPS}?watch=1&resourceVersion=2")
    assert (answer.code, answer.body["type"], answer.body["object"]["reason"]) == (200, "ERROR", "Expired")
    assert server.ask("GET", f"{CONFIGMAPS}?watch=1&resourceVersion=99999999").code == 504


async def _expire(server: Running) -> None:
    server.server.store.expire_watches()


def test_a_followed_log_ends_with_its_container(server: Running) -> None:
    """New text is sent at once; the end of the pod ends the stream."""
    pods = "/api/v1/namespaces/default/pods"
    server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    server.ask("POST", pods, {"metadata": {"name": "talker"}, "spec": {**POD, "nodeName": "n1"}})
    server.ask("POST", f"{pods}/talker/log", b"one\n", kind="text/plain")
    connection = server.connection()
    connection.request(
        "GET", f"{pods}/talker/log?follow=true", headers={"Authorization": f"Bearer {server.server.tokens.token()}"}
    )
    response = connection.getresponse()
    assert response.readline() == b"one\n"
    server.ask("POST", f"{pods}/talker/log", b"two\n", kind="text/plain")
    assert response.readline() == b"two\n"
    server.ask(
        "PATCH", f"{pods}/talker/status", {"status": {"phase": "Succeeded"}}, kind="application/merge-patch+json"
    )
    assert response.read() == b""
    connection.close()


def test_a_running_watch_ends_with_an_error_when_it_expires(server: Running) -> None:
    """The client lists again, as after a real 410."""
    faults = "/api/v1/namespaces/kube-system/configmaps"
    with watching(server, "/api/v1/nodes", "resourceVersion=", seconds=600) as watch:
        server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n9"}})
        watch.seen(1)
        body = {"metadata": {"name": "sandbox-faults"}, "data": {"api-server": "expire-watches: true"}}
        assert server.ask("POST", faults, body).code == 201
        server.ask("DELETE", f"{faults}/sandbox-faults")
    assert watch.events[-1]["type"] == "ERROR"
    assert (watch.events[-1]["object"]["code"], watch.events[-1]["object"]["reason"]) == (410, "Expired")
