"""The API of any cluster over HTTPS, as simulated nodes and controllers use it, by a kubeconfig's credentials."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from gpu_provision.kube.kubeconfig import choose
from gpu_provision.sandbox.api import ApiError, Object, Resource, WatchEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to reach an API server; the secret parts do not show when the value is printed."""

    server: str
    context: str
    authority: bytes = field(default=b"", repr=False)
    insecure: bool = False
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings."""
        context = ssl.create_default_context()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.authority:
            context = ssl.create_default_context(cadata=self.authority.decode())
        if self.certificate:
            _load_client(context, self.certificate, self.key)
        return context


def _load_client(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The standard library takes client certificates from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def credentials(path: str | Path, context: str = "") -> Credentials:
    """Return the credentials of a context, the current one by default. Raises UsageError."""
    chosen = choose(str(Path(path).expanduser()), context)
    cluster, user = chosen.cluster, chosen.user
    if not cluster.text("server"):
        raise cluster.bad(key="server", reason="it is missing")
    for key in ("exec", "auth-provider"):
        if user.data.get(key):
            raise user.bad(key=key, reason="simulated nodes need a token or a client certificate")
    token = user.text("token") or (user.text("tokenFile") and user.read("tokenFile").decode(errors="replace").strip())
    return Credentials(
        server=cluster.text("server").rstrip("/"),
        context=chosen.name,
        authority=cluster.content("certificate-authority"),
        insecure=cluster.flag("insecure-skip-tls-verify"),
        token=token,
        certificate=user.content("client-certificate"),
        key=user.content("client-key"),
    )


_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=360)
_WATCH_SECONDS = "300"
_MERGE_PATCH = "application/merge-patch+json"
_FIRST_ERROR = 400


class HttpApi:
    """Implements ``Api`` against an API server. Used as an async context manager."""

    def __init__(self, credentials: Credentials, *, agent: str = "gpu-provision-sandbox-node") -> None:
        """Nothing is sent before the first call."""
        self._credentials = credentials
        headers = {"Accept": "application/json", "User-Agent": agent}
        if credentials.token:
            headers["Authorization"] = f"Bearer {credentials.token}"
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        connector = aiohttp.TCPConnector(ssl=self._credentials.ssl_context(), limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=_TIMEOUT)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _url(self, resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"apis/{resource.group}" if resource.group else "api"
        scope = f"namespaces/{namespace}" if namespace else ""
        parts = (self._credentials.server, root, resource.version, scope, resource.plural, name, subresource)
        return "/".join(part for part in parts if part)

    async def call(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, body: Any = None, kind: str = ""
    ) -> Any:
        """Send one request and return the answer. Raises ApiError, or OSError if nobody answers."""
        if self._session is None:
            raise ApiError(0, "Closed", "the API is used outside its context")
        headers = {"Content-Type": kind or "application/json"} if body is not None else {}
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        try:
            async with (
                self._gate,
                self._session.request(method, url, params=query, data=data, headers=headers) as answer,
            ):
                text = await answer.text()
                if answer.status >= _FIRST_ERROR:
                    raise _refusal(answer.status, text)
                return json.loads(text) if text.startswith(("{", "[")) else text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(str(error) or repr(error)) from error

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        got: Object = await self.call("GET", self._url(resource, namespace, name))
        return got

    async def list(
        self, resource: Resource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        query = _selectors(label_selector, field_selector)
        answer = await self.call("GET", self._url(resource, namespace), query=query)
        return answer.get("items") or [], answer["metadata"]["resourceVersion"]

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield events since ``resource_version`` until the server ends the stream. Raises ApiError 410."""
        if self._session is None:
            raise ApiError(0, "Closed", "the API is used outside its context")
        query = {
            **_selectors(label_selector, field_selector),
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": _WATCH_SECONDS,
        }
        url = self._url(resource, namespace)
        try:
            async with self._session.get(url, params=query, timeout=_WATCH_TIMEOUT) as answer:
                if answer.status >= _FIRST_ERROR:
                    raise _refusal(answer.status, await answer.text())
                async for line in _lines(answer.content):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(str(error) or repr(error)) from error

    async def create(self, resource: Resource, body: Object, namespace: str = "") -> Object:
        """Create an object; ``metadata.generateName`` works. Raises ApiError 409."""
        made: Object = await self.call("POST", self._url(resource, namespace), body=body)
        return made

    async def update(self, resource: Resource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object, checking its resourceVersion. Raises ApiError 409 on conflict."""
        url = self._url(resource, namespace, body["metadata"]["name"], subresource)
        made: Object = await self.call("PUT", url, body=body)
        return made

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge-patch an object; None removes a key."""
        url = self._url(resource, namespace, name, subresource)
        made: Object = await self.call("PATCH", url, body=dict(body), kind=_MERGE_PATCH)
        return made

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; pods with ``grace_seconds=0`` go at once. Raises ApiError 404."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self.call("DELETE", self._url(resource, namespace, name), body=options)

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node, as the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        await self.call("POST", self._url(Resource("", "v1", "pods"), namespace, pod, "binding"), body=body)

    async def version(self) -> str:
        """Return the server's version, such as ``v1.34.1``."""
        return str((await self.call("GET", f"{self._credentials.server}/version")).get("gitVersion", ""))

    async def post_log(self, namespace: str, pod: str, container: str, text: str, *, restart: int = 0) -> None:
        """Hand a container's output to a sandbox's API server, which has no kubelet to ask."""
        url = self._url(Resource("", "v1", "pods"), namespace, pod, "log")
        await self.call(
            "POST", url, query={"container": container, "restart": str(restart)}, body=text, kind="text/plain"
        )


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    both = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in both.items() if value}


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line


def _event(line: bytes) -> WatchEvent:
    event = json.loads(line)
    if event["type"] == "ERROR":
        raise _status_refusal(event["object"])
    return WatchEvent(event["type"], event["object"])


def _refusal(code: int, text: str) -> ApiError:
    try:
        return _status_refusal({"code": code, **json.loads(text)})
    except (ValueError, TypeError):
        return ApiError(code, "Unknown", text[:200])


def _status_refusal(status: Mapping[str, Any]) -> ApiError:
    return ApiError(status.get("code", 500), status.get("reason", "Unknown"), status.get("message", ""))
