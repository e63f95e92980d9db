"""A reverse proxy before an API server that spoils a share of its answers.

    with Proxy(credentials(kubeconfig), Draws(seed=1, rate=0.2), folder) as proxy:
        ...  # a client with proxy.kubeconfig(kubeconfig)

It passes on who asks: the token that a client sends, and the client certificate of the kubeconfig that it is made for.
Before it loses an answer it waits for it, so the server has carried the request out. It does not pass on requests that
upgrade a connection, such as those of ``kubectl exec``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from gpu_provision.sandbox.client import KubeCredentials
from tests.faults.doubles import Write
from tests.faults.draws import Draws, Fault
from tests.real.access import Authority, write_private

_LOOPBACK = "127.0.0.1"
DELAY_SECONDS = 2.0
RETRY_AFTER_SECONDS = 2
_UPSTREAM_SECONDS = 600  # longer than a watch
_HANDSHAKE_SECONDS = 30
_OF_THE_CONNECTION = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


_Refusal = tuple[HTTPStatus, bytes]


def _refusal(code: HTTPStatus, reason: str, message: str) -> _Refusal:
    fields = {"status": "Failure", "reason": reason, "message": message, "code": code}
    return code, json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, **fields}).encode()


_EXPIRED = _refusal(HTTPStatus.GONE, "Expired", "too old resource version")
_UNAVAILABLE = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", "the server is currently unavailable")
_TOO_MANY = _refusal(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", "too many requests, please try again later")
_REFUSALS = {
    Fault.SERVER_ERROR: _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: request timed out"),
    **dict.fromkeys((Fault.UNAVAILABLE, Fault.UNAVAILABLE_FOR_SECONDS), _UNAVAILABLE),
    **dict.fromkeys((Fault.TOO_MANY, Fault.TOO_MANY_UNTIL), _TOO_MANY),
    Fault.GONE: _EXPIRED,
}
_WITH_SECONDS = frozenset({Fault.UNAVAILABLE_FOR_SECONDS, Fault.TOO_MANY})


class Proxy:
    """Runs in threads of this process, from ``with`` to its end."""

    def __init__(self, upstream: KubeCredentials, draws: Draws, folder: Path, *, delay: float = DELAY_SECONDS) -> None:
        """Listen on a free port of loopback; ``faults.log`` in the folder gets a line for each fault."""
        self.upstream, self.draws, self.delay = upstream, draws, delay
        self.spoiled = Counter[Fault]()
        self.writes: list[Write] = []  # answers to all requests that could change something, lost ones included
        self.closing = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._authority = folder, Authority(folder)
        self._log = (folder / "faults.log").open("a", buffering=1, encoding="utf-8")
        self._server = _Server(self, self._authority.issue("proxy", _LOOPBACK))
        self.url = f"https://{_LOOPBACK}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all connections; RuntimeError if the proxy itself was at fault once."""
        self._server.shutdown()
        self.closing.set()
        self._server.end()
        self._log.close()
        if self._server.errors:
            message = f"the proxy failed: {self._server.errors[0]!r}"
            raise RuntimeError(message) from self._server.errors[0]

    def kubeconfig(self, original: Path) -> Path:
        """Write the kubeconfig of a user of the API server, so that it leads through the proxy; return its path."""
        document = yaml.safe_load(original.read_text())
        for each in document["clusters"]:
            each["cluster"] = {"server": self.url, "certificate-authority": str(self._authority.certificate)}
        file = self._folder / f"through-proxy-{original.name}"
        write_private(file, yaml.safe_dump(document).encode())
        return file

    def note(self, fault: Fault, request: str) -> None:
        with self._server.alone:
            self.spoiled[fault] += 1
            self._log.write(f"{formatdate(usegmt=True)} {fault.value}: {request}\n")


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = False  # so that the end waits for all threads

    def __init__(self, proxy: Proxy, shown: Any) -> None:
        super().__init__((_LOOPBACK, 0), _Handler)
        self.proxy, self.alone = proxy, threading.Lock()
        self.errors: list[BaseException] = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(shown.certificate, shown.key)
        self.to_upstream = proxy.upstream.ssl_context()
        self._open: set[socket.socket] = set()

    def keep(self, connection: socket.socket) -> None:
        with self.alone:
            self._open.add(connection)
        if self.proxy.closing.is_set():
            _shut(connection)

    def forget(self, connection: socket.socket) -> None:
        with self.alone:
            self._open.discard(connection)

    def end(self) -> None:
        with self.alone:
            kept = list(self._open)
        for connection in kept:
            _shut(connection)
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Keep what is a mistake of the proxy; connections may end at any time."""
        error = sys.exception()
        if error and not isinstance(error, OSError | http.client.HTTPException):
            self.errors.append(error)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS: a thread may be reading


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client, and one to the server for it."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _upstream: http.client.HTTPSConnection | None = None

    def setup(self) -> None:
        self.request.settimeout(_HANDSHAKE_SECONDS)
        self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        self.request.settimeout(None)
        self.server.keep(self.request)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self._leave_upstream()
        self.server.forget(self.request)
        self.request.close()

    def log_message(self, *_: object) -> None:
        """Say nothing: the proxy writes down what it spoils."""

    def serve(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self._is_watch = query.get("watch", ["false"])[0] in {"true", "1"}
        self._is_write = self.command != "GET" and "dryRun" not in query
        self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault, events = self.server.proxy.draws.draw(is_watch=self._is_watch)
        match fault:
            case None:
                self._pass_on()
            case Fault.DELAY:
                self._note(fault)
                self.server.proxy.closing.wait(self.server.proxy.delay)
                self._pass_on()
            case Fault.RESET_BEFORE:
                self._note(fault)
                self._reset()
            case Fault.ANSWER_LOST:
                response = self._ask()
                if not self._is_watch:
                    self._recorded(response)
                self._note(fault)
                self._reset()
            case _ if refusal := _REFUSALS.get(fault):
                self._note(fault)
                self._refuse(refusal, fault)
            case _:
                self._pass_on(fault, events)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 - what http.server calls

    def _note(self, fault: Fault) -> None:
        self.server.proxy.note(fault, f"{self.command} {self.path}")

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._leave()

    def _leave(self) -> None:
        """End this connection and, whatever it still has to say, the one to the server."""
        self.close_connection = True
        self._leave_upstream()

    def _refuse(self, refusal: _Refusal, fault: Fault) -> None:
        code, status = refusal
        self.send_response(code)
        if fault in _WITH_SECONDS:
            self.send_header("Retry-After", str(RETRY_AFTER_SECONDS))
        if fault is Fault.TOO_MANY_UNTIL:
            self.send_header("Retry-After", formatdate(time.time() + RETRY_AFTER_SECONDS, usegmt=True))
        self.send_header("Content-Type", "application/json")
        self._send(status)

    def _send(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _pass_on(self, fault: Fault | None = None, events: int = 0) -> None:
        response = self._ask()
        is_stream = self._is_watch and response.status == HTTPStatus.OK
        content = b"" if is_stream else self._recorded(response)
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _OF_THE_CONNECTION:
                self.send_header(name, value)
        if not is_stream:
            self._send(content)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._stream(response, fault, events)
        self._leave()

    def _stream(self, response: http.client.HTTPResponse, fault: Fault | None, events: int) -> None:
        """Pass events of a watch on, as many as it gets, and end it as the fault says."""
        passed = 0
        while fault is None or passed < events:
            if not (line := response.readline()):
                self._end_stream()
                return
            self._chunk(line)
            passed += 1
        if fault is Fault.WATCH_TORN_IN_LINE:
            if not (line := response.readline()):
                self._end_stream()
                return
            self._chunk(line[: len(line) // 2])  # a chunk of its own, so that clients see it
        self._note(fault)
        if fault is Fault.GONE_EVENT:
            self._chunk(b'{"type":"ERROR","object":%s}\n' % _EXPIRED[1])
        if fault in {Fault.GONE_EVENT, Fault.WATCH_ENDED}:
            self._end_stream()

    def _end_stream(self) -> None:
        """End a watch as the server did; at the proxy's end it is the connection that ends, and the watch is torn."""
        if not self.server.proxy.closing.is_set():
            self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, line: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _ask(self) -> http.client.HTTPResponse:
        """Have the server carry the request out; return its answer, which is not read yet."""
        upstream = self._connected()
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OF_THE_CONNECTION:
                upstream.putheader(name, value)
        if self._body or self.command != "GET":
            upstream.putheader("Content-Length", str(len(self._body)))
        upstream.endheaders(self._body or None)
        return upstream.getresponse()

    def _recorded(self, response: http.client.HTTPResponse) -> bytes:
        content = response.read()
        if self._is_write:
            path = urlsplit(self.path).path
            self.server.proxy.writes.append(Write(self.command, path, response.status, self._body))
        return content

    def _connected(self) -> http.client.HTTPSConnection:
        """Return a connection to the server; a new one after it has ended the last one, as it may between requests."""
        if self._upstream and not select.select([self._upstream.sock], [], [], 0)[0]:
            return self._upstream
        self._leave_upstream()
        address = urlsplit(self.server.proxy.upstream.server)
        made = http.client.HTTPSConnection(
            address.hostname or "", address.port, context=self.server.to_upstream, timeout=_UPSTREAM_SECONDS
        )
        made.connect()
        self.server.keep(made.sock)
        self._upstream = made
        return made

    def _leave_upstream(self) -> None:
        if self._upstream:
            if self._upstream.sock:
                self.server.forget(self._upstream.sock)
            self._upstream.close()
            self._upstream = None
