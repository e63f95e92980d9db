"""Start and end the API server of one sandbox; what exists from the start, and what it does after writes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from importlib import resources as files
from pathlib import Path

import yaml
from aiohttp import web

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import credentials
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.faults import ApiFaults
from gpu_provision.sandbox.apiserver.http import HttpServer
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.request_log import RequestLog
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.store import Store, StoredObject

_OPTIONS = WriteOptions(manager="kube-apiserver")
_EVENTS = "/events"
MAX_EVENTS, DROPPED_AT_ONCE = 5000, 500
"""A real cluster forgets events after an hour; a sandbox keeps the newest of them."""
_CLOSING_SECONDS = 2.0
_BACKLOG = 512


def bootstrap(registry: Registry, authority: str) -> None:
    """Create what is missing of the first objects; ``authority`` is the PEM text of the server's CA."""
    defaults = _NamespaceDefaults(registry, authority)
    registry.on_change("/namespaces", defaults.on_namespace)
    for storage in ("/serviceaccounts", "/configmaps"):
        registry.on_change(storage, defaults.on_default)
    for obj in yaml.safe_load_all((files.files(__package__) / "bootstrap.yaml").read_text("utf-8")):
        _ensure(registry, obj)
    for item in registry.store.select("/namespaces"):
        defaults.ensure(item.object["metadata"]["name"])


def _ensure(registry: Registry, obj: Object) -> None:
    """Create an object unless it is there."""
    kind = obj["apiVersion"], obj["kind"]
    info = next(info for info in registry.catalog if (info.api_version, info.kind) == kind)
    target = RequestInfo(info, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    if registry.is_missing(target):
        registry.create(target, obj, _OPTIONS)


class _NamespaceDefaults:
    """Gives each namespace the service account ``default`` and the ConfigMap ``kube-root-ca.crt``."""

    def __init__(self, registry: Registry, authority: str) -> None:
        self._registry, self._authority = registry, authority

    def on_namespace(self, before: StoredObject | None, after: StoredObject | None) -> None:
        if before is None and after is not None:
            self.ensure(after.object["metadata"]["name"])

    def on_default(self, before: StoredObject | None, after: StoredObject | None) -> None:
        if after is None and before and before.object["metadata"]["name"] in ("default", "kube-root-ca.crt"):
            self.ensure(before.object["metadata"]["namespace"])

    def ensure(self, namespace: str) -> None:
        root = {"name": "kube-root-ca.crt", "namespace": namespace}
        objects: tuple[Object, ...] = (
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": root, "data": {"ca.crt": self._authority}},
        )
        for obj in objects:
            try:
                _ensure(self._registry, obj)
            except StatusError as error:
                if error.code not in (403, 404):  # the namespace is being deleted already, or gone
                    raise


def start_maintenance(registry: Registry) -> None:
    """Notify the readers of logs when their pods change; drop the oldest events."""
    store = registry.store

    def notify_followers(before: StoredObject | None, after: StoredObject | None) -> None:
        pod = after or before
        if pod is not None:
            store.logs.notify(pod.object["metadata"]["uid"])

    def drop_oldest(before: StoredObject | None, after: StoredObject | None) -> None:
        if before is not None or after is None or store.count(_EVENTS) <= MAX_EVENTS:
            return
        for item in sorted(store.select(_EVENTS), key=lambda item: item.version)[:DROPPED_AT_ONCE]:
            metadata = item.object["metadata"]
            store.remove(_EVENTS, metadata["name"], metadata["namespace"])

    registry.on_change("/pods", notify_followers)
    registry.on_change(_EVENTS, drop_oldest)


class Server:
    """A running API server."""

    def __init__(self, directory: Path, *, context: str, host: str) -> None:
        """Read what the directory holds; :func:`serve` starts listening."""
        self.directory, self.context, self.host = directory, context, host
        self.kubeconfig, self.request_log = directory / "kubeconfig", directory / "requests.log"
        self.authority = credentials.ensure_certificates(directory / "certificates", host)
        self.store = Store(directory / "store.db")
        self.registry = Registry(self.store)
        bootstrap(self.registry, self.authority.read_text())
        start_maintenance(self.registry)
        self.api = LocalApi(self.registry)
        self.tokens = credentials.Tokens(directory / "tokens.json")
        faults = ApiFaults(self.store.expire_watches)
        self.registry.on_change("/configmaps", faults.on_change)
        for item in self.store.select("/configmaps", "kube-system"):
            faults.on_change(None, item)
        self._log = RequestLog(self.request_log)
        self.http = HttpServer(self.registry, self.tokens, faults, self._log)
        self._runner = web.AppRunner(self.http.application(), access_log=None, shutdown_timeout=_CLOSING_SECONDS)
        self.port = 0

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return f"https://{self.host}:{self.port}"

    async def listen(self, port: int) -> None:
        """Answer requests from now on; port 0 asks for that of the last time, or a free one."""
        await self._runner.setup()
        listener = _listen(self.host, port, self.directory / "port")
        self.port = listener.getsockname()[1]
        (self.directory / "port").write_text(str(self.port))
        context = credentials.server_context(self.directory / "certificates")
        await web.SockSite(self._runner, listener, ssl_context=context, backlog=_BACKLOG).start()
        self.write_kubeconfig(self.kubeconfig)

    def write_kubeconfig(self, path: Path, user: str = credentials.ADMIN) -> None:
        """Write a kubeconfig for a user, who may do what RBAC grants; a new user gets a token."""
        token = self.tokens.ensure(user)
        credentials.write_kubeconfig(
            path, url=self.url, authority=self.authority, token=token, context=self.context, user=user
        )

    async def close(self) -> None:
        """End all connections and close the files."""
        connections = self._runner.server.connections if self._runner.server else []
        open_ones = [connection.transport for connection in connections if connection.transport]
        self.http.end_streams()
        await self._runner.cleanup()
        for transport in open_ones:  # TLS would wait for the farewell of idle clients
            with contextlib.suppress(AttributeError):  # Python before 3.11.4, if the connection ended meanwhile
                transport.abort()
        self._log.close()
        self.store.close()


def _listen(host: str, port: int, remembered: Path) -> socket.socket:
    before = int(remembered.read_text()) if not port and remembered.exists() else 0
    try:
        return _bind(host, port or before)
    except OSError as error:
        if port or error.errno != errno.EADDRINUSE:
            raise
        return _bind(host, 0)


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def serve(directory: Path, *, port: int = 0, host: str = "127.0.0.1", context: str = "sandbox") -> Server:
    """Start the API server of a directory, which keeps its state, certificates, tokens, kubeconfig and request log.

    ``port`` 0 takes the port of the last time if it is free. Raises OSError if the port is taken or the directory
    cannot be written.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    server = Server(directory, context=context, host=host)
    await server.listen(port)
    return server
