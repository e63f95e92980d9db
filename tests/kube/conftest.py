"""A running API server, a client for it, and servers that misbehave."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model.cluster import Manifest
from tests.sandbox.apiserver.conftest import Running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield running
    running.stop()


@pytest.fixture
def cluster(server: Running) -> Iterator[KubeClient]:
    """Give a client of the module's server; faults end with the test."""
    made = connect(str(server.server.kubeconfig))
    yield made
    fault(made)


@pytest.fixture
def namespace(cluster: KubeClient, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[-63:].strip("-")
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def fault(cluster: KubeClient, **declared: Any) -> None:
    """Declare the server's faults that are in force from now on."""
    manifest = config_map("sandbox-faults", namespace="kube-system", data={"api-server": yaml.safe_dump(declared)})
    cluster.apply(manifest)


def config_map(
    name: str, *, namespace: str = "default", labels: dict[str, str] | None = None, **parts: Any
) -> Manifest:
    metadata = {"name": name, "namespace": namespace, **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **parts}


def kubeconfig(folder: Path, url: str, *, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "odd",
        "contexts": [{"name": "odd", "context": {"cluster": "odd", "user": "odd"}}],
        "clusters": [{"name": "odd", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "odd", "user": user or {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


Canned = tuple[int, dict[str, str], bytes]


def added(name: str, version: str = "7") -> Canned:
    manifest = config_map(name)
    item = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
    return 200, {}, json.dumps({"type": "ADDED", "object": item}).encode() + b"\n"


class QuietHandler(BaseHTTPRequestHandler):
    """Writes nothing to stderr; `say` is a whole answer."""

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def say(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *request: Any) -> None:
        """Print nothing of a client that does not trust the certificate."""
        if not isinstance(sys.exc_info()[1], ssl.SSLError):
            super().handle_error(*request)


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve on a port of the loopback interface, which is yielded, in a thread."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[..., KubeClient]]:
    """Start a server that gives the answers one after the other, the last one for ever; return its client."""
    with contextlib.ExitStack() as started:

        def start(*answers: Canned) -> KubeClient:
            left = list(answers)

            class Handler(QuietHandler):
                def do_GET(self) -> None:
                    code, headers, body = left.pop(0) if len(left) > 1 else left[0]
                    self.say(code, body, headers)

                do_PATCH = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 (the names that http.server calls)

            port = started.enter_context(serving(Handler))
            return connect(str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))

        yield start


Lossy = Callable[..., KubeClient]


@pytest.fixture
def lossy(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> Lossy:
    def make(meanwhile: Callable[[], object] = lambda: None) -> KubeClient:
        request, lost = cluster._client.request, list[str]()

        def lose(verb: str, *arguments: Any, **options: Any) -> Any:
            answer = request(verb, *arguments, **options)
            if verb == "get" or lost:
                return answer
            lost.append(verb)
            meanwhile()
            raise ConnectionResetError(104, "Connection reset by peer")

        monkeypatch.setattr(cluster._client, "request", lose)
        return cluster

    return make


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[KubeClient]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield connect(str(kubeconfig(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}")))
