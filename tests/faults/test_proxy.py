"""A proxy between a client and a server, one request after the other."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_provision.sandbox.client import load_credentials
from tests.faults.draws import Fault
from tests.faults.proxy import Proxy
from tests.real.access import Authority, write_kubeconfig

EVENTS = [b'{"type":"ADDED","object":{"n":%d}}\n' % number for number in range(3)]
POD = b'{"metadata":{"name":"x"}}'
WATCH = "/api/v1/pods?watch=true"


class Server(ThreadingHTTPServer):
    """Answers 201 to every POST and 200 to all else; a watch has three events and ends, or stays open."""

    def __init__(self) -> None:
        """Listen."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str, str | None, bytes]] = []
        self.stays = threading.Event()
        self.stays.set()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self) -> None:
        """Remember the request, and answer it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, self.headers["Authorization"], body))
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("Audit-Id", "7")
        if "watch" not in self.path:
            self.send_header("Content-Length", str(len(POD)))
            self.end_headers()
            self.wfile.write(POD)
            self.close_connection = "/last" in self.path
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in EVENTS:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.server.stays.wait(30)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - what http.server calls


@dataclass
class Script:
    """Faults in order; then none."""

    faults: list[tuple[Fault | None, int]] = field(default_factory=list)

    def draw(self, *, is_watch: bool) -> tuple[Fault | None, int]:
        """Return the next one."""
        del is_watch
        return self.faults.pop(0) if self.faults else (None, 0)


@dataclass
class Setup:
    """A client, the proxy and the server."""

    server: Server
    proxy: Proxy
    script: Script
    connection: http.client.HTTPSConnection

    def ask(self, verb: str, path: str, body: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request; return the answer, and as much of its content as there is."""
        self.connection.request(verb, path, body, {"Authorization": "Bearer mine"})
        response = self.connection.getresponse()
        try:
            return response, response.read()
        except http.client.IncompleteRead as error:
            return response, error.partial


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    """All of it; the client uses the kubeconfig that the proxy has written."""
    authority = Authority(tmp_path)
    shown = authority.issue("server", "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown.certificate, shown.key)
    server, script, original = Server(), Script(), tmp_path / "kubeconfig"
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    write_kubeconfig(original, url, authority.certificate, "me", "mine")
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    try:
        with Proxy(load_credentials(original), script, tmp_path / "proxy", delay=0.01) as proxy:  # type: ignore[arg-type]
            access = load_credentials(proxy.kubeconfig(original))
            assert (access.server, access.token) == (proxy.url, "mine")
            port = urlsplit(access.server).port
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=access.ssl_context(), timeout=30)
            with contextlib.closing(connection):
                yield Setup(server, proxy, script, connection)
    finally:
        server.shutdown()
        server.server_close()


def test_a_request_and_its_answer_pass_unchanged(setup: Setup) -> None:
    response, content = setup.ask("POST", "/api/v1/pods?a=b", POD)
    assert (response.status, response.headers["Audit-Id"], content) == (201, "7", POD)
    assert setup.server.seen == [("POST", "/api/v1/pods?a=b", "Bearer mine", POD)]
    assert [(each.verb, each.path, each.code, each.body) for each in setup.proxy.writes] == [
        ("POST", "/api/v1/pods", 201, POD)
    ]
    assert not setup.proxy.spoiled


def test_reads_and_dry_runs_are_no_writes(setup: Setup) -> None:
    setup.ask("GET", "/api/v1/pods")
    setup.ask("POST", "/api/v1/pods?dryRun=All", POD)
    assert setup.proxy.writes == []


def test_a_lost_answer_did_the_work(setup: Setup) -> None:
    setup.script.faults = [(Fault.ANSWER_LOST, 0)]
    with pytest.raises(ConnectionResetError):  # or RemoteDisconnected, a kind of it: TLS may hide the reset
        setup.ask("POST", "/api/v1/pods", POD)
    assert [verb for verb, *_ in setup.server.seen] == ["POST"]
    assert [each.code for each in setup.proxy.writes] == [201]


def test_a_reset_before_did_not(setup: Setup) -> None:
    setup.script.faults = [(Fault.RESET_BEFORE, 0)]
    with pytest.raises(ConnectionResetError):  # or RemoteDisconnected, a kind of it: TLS may hide the reset
        setup.ask("POST", "/api/v1/pods", POD)
    assert setup.server.seen == []
    assert setup.proxy.writes == []


@pytest.mark.parametrize(
    ("fault", "code", "retry_after"),
    [
        (Fault.SERVER_ERROR, 500, None),
        (Fault.UNAVAILABLE, 503, None),
        (Fault.UNAVAILABLE_FOR_SECONDS, 503, str.isdigit),
        (Fault.TOO_MANY, 429, str.isdigit),
        (Fault.TOO_MANY_UNTIL, 429, parsedate_to_datetime),
        (Fault.GONE, 410, None),
    ],
)
def test_a_refused_request_is_not_carried_out(
    setup: Setup, fault: Fault, code: int, retry_after: Callable[[str], Any] | None
) -> None:
    """The connection stays; the next request passes."""
    setup.script.faults = [(fault, 0)]
    response, content = setup.ask("DELETE", "/api/v1/pods/x")
    told = response.headers["Retry-After"]
    assert (response.status, json.loads(content)["code"]) == (code, code)
    assert retry_after(told) if retry_after else told is None
    assert setup.server.seen == []
    assert setup.ask("DELETE", "/api/v1/pods/x")[0].status == 200
    assert setup.proxy.spoiled == {fault: 1}


def test_a_delayed_request_is_carried_out(setup: Setup) -> None:
    setup.script.faults = [(Fault.DELAY, 0)]
    assert setup.ask("GET", "/api/v1/pods/x")[1] == POD
    assert setup.proxy.spoiled == {Fault.DELAY: 1}


@pytest.mark.parametrize(
    ("fault", "events", "content"),
    [
        (None, 0, b"".join(EVENTS)),
        (Fault.WATCH_ENDED, 1, EVENTS[0]),
        (Fault.WATCH_TORN, 0, b""),
        (Fault.WATCH_TORN, 2, EVENTS[0] + EVENTS[1]),
        (Fault.WATCH_TORN_IN_LINE, 1, EVENTS[0] + EVENTS[1][: len(EVENTS[1]) // 2]),
    ],
)
def test_a_watch_ends_after_as_many_events_as_it_gets(
    setup: Setup, fault: Fault | None, events: int, content: bytes
) -> None:
    setup.script.faults = [(fault, events)]
    assert setup.ask("GET", WATCH)[1] == content
    assert setup.proxy.spoiled == ({fault: 1} if fault else {})


def test_a_watch_is_torn_without_an_end(setup: Setup) -> None:
    """One that ends as the server would end it is no error to the client."""
    for fault, is_torn in ((Fault.WATCH_TORN, True), (Fault.WATCH_TORN_IN_LINE, True), (Fault.WATCH_ENDED, False)):
        setup.script.faults = [(fault, 1)]
        setup.connection.request("GET", WATCH)
        response = setup.connection.getresponse()
        with pytest.raises(http.client.IncompleteRead) if is_torn else contextlib.nullcontext():
            response.read()
        setup.connection.close()


def test_a_watch_learns_that_its_version_is_gone(setup: Setup) -> None:
    setup.script.faults = [(Fault.GONE_EVENT, 1)]
    first, last = map(json.loads, setup.ask("GET", WATCH)[1].splitlines())
    assert (first["type"], last["type"], last["object"]["code"]) == ("ADDED", "ERROR", 410)


def test_a_server_may_end_a_connection_between_requests(setup: Setup) -> None:
    setup.ask("GET", "/api/v1/pods/last")
    assert setup.ask("GET", "/api/v1/pods/x")[1] == POD


def test_the_end_does_not_wait_for_open_watches(setup: Setup) -> None:
    """Nor for a client that goes on reading."""
    setup.server.stays.clear()
    setup.connection.request("GET", WATCH)
    response = setup.connection.getresponse()
    assert response.readline() == EVENTS[0]
    setup.proxy.__exit__()
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    setup.server.stays.set()
