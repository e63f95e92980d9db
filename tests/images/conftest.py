"""A small registry with TLS on the loopback interface, which speaks the OCI distribution API's part for asking."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TOKEN = "token-of-the-test"  # noqa: S105 - the test's own


@dataclass(slots=True)
class Registry:
    """What the registry has and wants, and what it was asked.

    Attributes:
        images: ``name:version`` -> the architectures that it exists for; none for a bare manifest.
        wants: ``""``, ``bearer`` or ``basic``.
        user: ``name:password`` that it lets in; empty for everybody.
        realm: Where it sends for tokens; empty for itself.
        status: A status that it answers to everything, if set.
        asked: (method, path, Authorization) of every request.
        content: The body of every answer, instead of what fits; None for what fits.
    """

    port: int = 0
    images: dict[str, list[str]] = field(default_factory=dict)
    wants: str = ""
    user: str = ""
    realm: str = ""
    status: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    content: str | None = None

    @property
    def host(self) -> str:
        """Its name in references."""
        return f"localhost:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        valid = form["refresh_token"] == ["refresh-me"]
        self._say(200, {"access_token": TOKEN}) if valid else self._say(401, {})

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _answer(self) -> None:
        registry, given = self.registry, self.headers.get("Authorization", "")
        registry.asked.append((self.command, self.path, given))
        url = urlsplit(self.path)
        if registry.status:
            self._say(registry.status, {}, {"Location": "https://elsewhere.invalid/"})
        elif url.path == "/token":
            self._give_token(parse_qs(url.query), given)
        elif registry.wants and not self._let_in(given):
            self._challenge()
        else:
            self._manifest(url.path)

    do_HEAD = do_GET = _answer  # noqa: N815 - the names that http.server calls

    def _give_token(self, query: dict[str, list[str]], given: str) -> None:
        user = self.registry.user
        allowed = not user or given == f"Basic {base64.b64encode(user.encode()).decode()}"
        assert query["scope"] == ["repository:nvidia/driver:pull"]
        self._say(200, {"token": TOKEN}) if allowed else self._say(401, {})

    def _let_in(self, given: str) -> bool:
        if self.registry.wants == "basic":
            return given == f"Basic {base64.b64encode(self.registry.user.encode()).decode()}"
        return given == f"Bearer {TOKEN}"

    def _challenge(self) -> None:
        realm = self.registry.realm or f"https://{self.registry.host}/token"
        bearer = f'Bearer realm="{realm}",service="the-registry",scope="repository:nvidia/driver:pull"'
        headers = {"WWW-Authenticate": bearer if self.registry.wants == "bearer" else 'Basic realm="x"'}
        self._say(401, {"errors": [{"code": "UNAUTHORIZED"}]}, headers)

    def _manifest(self, path: str) -> None:
        name, _, version = path.removeprefix("/v2/").rpartition("/manifests/")
        found = self.registry.images.get(f"{name}:{version}")
        if found is None:
            self._say(404, {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no"}]})
            return
        manifests = [{"platform": {"architecture": each, "os": "linux"}} for each in found]
        self._say(200, {"manifests": manifests}, {"Content-Type": INDEX if found else MANIFEST})

    def _say(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        chosen = self.registry.content
        body = (json.dumps(content) if chosen is None else chosen).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *request: Any) -> None:
        """Print nothing of a client that does not trust the certificate."""
        if not isinstance(sys.exc_info()[1], ssl.SSLError):
            super().handle_error(*request)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry whose certificate this process trusts, and a user without credentials."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Registry()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": state}))
    server.daemon_threads = True
    state.port = server.server_address[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def log_in(directory: Path, host: str, **entry: str) -> None:
    """Write docker's configuration as ``docker login`` does."""
    (directory / "docker").mkdir(exist_ok=True)
    (directory / "docker/config.json").write_text(json.dumps({"auths": {host: entry}}))
