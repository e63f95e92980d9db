"""The `Api` of any cluster over HTTPS, with the credentials of a kubeconfig."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from gpu_provision.sandbox.api import PODS, Api, ApiError, ApiResource, Object, ObjectEvent, ObjectPath
from gpu_provision.sandbox.errors import SandboxError, SandboxProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeCredentials:
    """Address and credentials of an API server; ``repr`` omits the secrets."""

    server: str
    context: str
    authority: bytes = field(default=b"", repr=False)
    insecure: bool = False
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context."""
        # Only without ``cadata`` does Python load the system's certificates, which takes tens of milliseconds.
        context = ssl.create_default_context(cadata=self.authority.decode() or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads client certificates only from files
                file.write(self.certificate + b"\n" + self.key)
                file.flush()
                context.load_cert_chain(file.name)
        return context


def load_credentials(path: str | Path, context: str = "") -> KubeCredentials:
    """Read the credentials of a context, by default the current one. Raises SandboxError (GP300)."""
    file = Path(path).expanduser()
    try:
        config: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        context = context or config["current-context"]
        references = _entry(config, "context", context)
        cluster, user = _entry(config, "cluster", references["cluster"]), _entry(config, "user", references["user"])
        if "exec" in user or "auth-provider" in user:
            raise _problem(file, f"user {references['user']!r}: simulated nodes need a token or a client certificate")
        return KubeCredentials(
            server=cluster["server"].rstrip("/"),
            context=context,
            authority=_read_content(file, cluster, "certificate-authority"),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            token=user.get("token") or _read_content(file, user, "token", file_key="tokenFile").decode().strip(),
            certificate=_read_content(file, user, "client-certificate"),
            key=_read_content(file, user, "client-key"),
        )
    except OSError as error:
        raise _problem(file, f"{error.filename} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise _problem(file, f"it is not a usable kubeconfig ({type(error).__name__})") from error


def _problem(file: Path, what: str) -> SandboxError:
    return SandboxError(SandboxProblem(code="GP300", where=str(file), what=what))


def _entry(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    for entry in config[f"{kind}s"]:
        if entry["name"] == name:
            return dict(entry[kind])
    raise SandboxError(SandboxProblem(code="GP300", what=f"the kubeconfig has no {kind} {name!r}"))


def _read_content(file: Path, entry: dict[str, Any], key: str, *, file_key: str = "") -> bytes:
    """Return the data of an entry, from base64 or from a file; paths are relative to the kubeconfig's folder."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    named = entry.get(file_key or key)
    return (file.parent / named).read_bytes() if named else b""


_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=360)
_WATCH = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "300"}
_MERGE_PATCH = "application/merge-patch+json"
_FIRST_ERROR, _TOO_MANY, _SERVER_ERROR = 400, 429, 500


class HttpApi(Api):
    """Implements ``Api`` against an API server. Used as an async context manager.

    Attributes:
        pause: Seconds between retries while the server is unreachable, throttles or fails; None raises instead. A
            retried create without an answer may create an object with a generated name twice.
    """

    def __init__(self, credentials: KubeCredentials, *, agent: str = "gpu-provision-sandbox-node") -> None:
        """Prepare without any request."""
        self.pause: float | None = None
        self._credentials = credentials
        self._headers = {"Accept": "application/json", "User-Agent": agent}
        if credentials.token:
            self._headers["Authorization"] = f"Bearer {credentials.token}"

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        connector = aiohttp.TCPConnector(ssl=self._credentials.ssl_context(), limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=_TIMEOUT)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._session.close()

    def _url(self, path: ObjectPath) -> str:
        (group, version, plural), namespace, name, subresource = path
        root, scope = f"apis/{group}" if group else "api", f"namespaces/{namespace}" if namespace else ""
        parts = (self._credentials.server, root, version, scope, plural, name, subresource)
        return "/".join(part for part in parts if part)

    async def request(self, method: str, path: ObjectPath, body: Object | None = None, **selectors: str) -> Any:
        """Send a request and return the response body. Raises ApiError, or OSError if no server responds."""
        kind = _MERGE_PATCH if method == "PATCH" else "application/json"
        text = None if body is None else json.dumps(body)
        return await self._retry(method, self._url(path), _query(selectors), text, kind)

    async def _retry(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: str | None = None, kind: str = ""
    ) -> Any:
        while True:
            try:
                return await self._send(method, url, query, body, kind)
            except (ApiError, OSError) as error:
                is_final = isinstance(error, ApiError) and error.code < _SERVER_ERROR and error.code != _TOO_MANY
                if self.pause is None or is_final:
                    raise
            await asyncio.sleep(self.pause)

    async def _send(self, method: str, url: str, query: Mapping[str, str] | None, body: str | None, kind: str) -> Any:
        headers, session = {} if body is None else {"Content-Type": kind}, self._session
        try:
            async with self._gate, session.request(method, url, params=query, data=body, headers=headers) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(str(error) or repr(error)) from error
        if answer.status >= _FIRST_ERROR:
            raise _parse_error(answer.status, text)
        return json.loads(text) if text.startswith(("{", "[")) else text

    async def watch(
        self, resource: ApiResource, version: str, namespace: str = "", **selectors: str
    ) -> AsyncIterator[ObjectEvent]:
        """Yield events since a resourceVersion until the server ends the stream. Raises ApiError 410."""
        query, path = _WATCH | {"resourceVersion": version} | _query(selectors), ObjectPath(resource, namespace)
        try:
            async with self._session.get(self._url(path), params=query, timeout=_WATCH_TIMEOUT) as answer:
                if answer.status >= _FIRST_ERROR:
                    raise _parse_error(answer.status, await answer.text())
                async for event in _parse_events(answer.content):
                    yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(str(error) or repr(error)) from error

    async def version(self) -> str:
        """Return the server's version, such as ``v1.34.1``."""
        return str((await self._retry("GET", f"{self._credentials.server}/version")).get("gitVersion", ""))

    async def post_log(self, namespace: str, pod: str, container: str, text: str, *, restart: int = 0) -> None:
        """Send a container's output to a sandbox's API server, which has no kubelet to read it from."""
        query = {"container": container, "restart": str(restart)}
        await self._retry("POST", self._url(ObjectPath(PODS, namespace, pod, "log")), query, text, "text/plain")


def _query(selectors: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_s", "S"): text for key, text in selectors.items() if text}


async def _parse_events(stream: aiohttp.StreamReader) -> AsyncIterator[ObjectEvent]:
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for event in map(json.loads, filter(bytes.strip, lines)):
            if event["type"] == "ERROR":
                raise _status_error(event["object"])
            yield ObjectEvent(event["type"], event["object"])


def _parse_error(code: int, text: str) -> ApiError:
    try:
        return _status_error({"code": code, **json.loads(text)})
    except (ValueError, TypeError):
        return ApiError(code, "Unknown", text[:200])


def _status_error(status: Mapping[str, Any]) -> ApiError:
    return ApiError(status.get("code", 500), status.get("reason", "Unknown"), status.get("message", ""))
