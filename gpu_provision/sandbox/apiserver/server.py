"""Start and end the API server of one sandbox; what exists from the start, and what it does after writes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from importlib import resources as files
from pathlib import Path

import yaml
from aiohttp import web

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import certificates
from gpu_provision.sandbox.apiserver.auth import ADMIN, Rule, Tokens
from gpu_provision.sandbox.apiserver.faults import Faults
from gpu_provision.sandbox.apiserver.http import Face, application
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.requestlog import RequestLog
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import StatusError
from gpu_provision.sandbox.apiserver.store import Item, Store
from gpu_provision.sandbox.apiserver.targets import Target

_OPTIONS = WriteOptions(manager="kube-apiserver")
_FURNITURE = ("default", "kube-root-ca.crt")


def bootstrap(registry: Registry, authority: str) -> None:
    """Create what is missing of the first objects; ``authority`` is the PEM text of the server's CA."""
    rooms = _Rooms(registry, authority)
    registry.on_change("/namespaces", rooms.changed)
    for storage in ("/serviceaccounts", "/configmaps"):
        registry.on_change(storage, rooms.missed)
    text = (files.files(__package__) / "bootstrap.yaml").read_text("utf-8")
    for obj in yaml.safe_load_all(text):
        group, _, version = obj["apiVersion"].rpartition("/")
        info = next(
            info for info in registry.catalog if (info.group, info.version, info.kind) == (group, version, obj["kind"])
        )
        _ensure(registry, info, obj)
    for item in registry.store.select("/namespaces"):
        rooms.furnish(item.object["metadata"]["name"])


def _ensure(registry: Registry, info: ResourceInfo, obj: Object) -> None:
    namespace = obj["metadata"].get("namespace", "")
    if registry.store.get(info.storage, obj["metadata"]["name"], namespace) is None:
        registry.create(Target(info, namespace), obj, _OPTIONS)


class _Rooms:
    """Furnishes namespaces: the service account ``default`` and the ConfigMap ``kube-root-ca.crt``."""

    def __init__(self, registry: Registry, authority: str) -> None:
        self._registry, self._authority = registry, authority

    def changed(self, before: Item | None, after: Item | None) -> None:
        if before is None and after is not None:
            self.furnish(after.object["metadata"]["name"])

    def missed(self, before: Item | None, after: Item | None) -> None:
        if after is None and before is not None and before.object["metadata"]["name"] in _FURNITURE:
            self.furnish(before.object["metadata"]["namespace"])

    def furnish(self, namespace: str) -> None:
        account: Object = {"metadata": {"name": "default", "namespace": namespace}}
        root: Object = {
            "metadata": {"name": "kube-root-ca.crt", "namespace": namespace},
            "data": {"ca.crt": self._authority},
        }
        for plural, obj in (("serviceaccounts", account), ("configmaps", root)):
            info = self._registry.catalog.find("", "v1", plural)
            if info is not None:
                self._furnish(info, obj)

    def _furnish(self, info: ResourceInfo, obj: Object) -> None:
        try:
            _ensure(self._registry, info, obj)
        except StatusError as refusal:
            if refusal.code not in (403, 404):  # the namespace is being deleted already, or gone
                raise


EVENTS = "/events"
MOST_EVENTS, DROPPED_AT_ONCE = 5000, 500
"""A real cluster forgets events after an hour; a sandbox keeps the newest of them."""


def keep_up(registry: Registry) -> None:
    """Start the upkeep of a cluster."""
    store = registry.store

    def wake_followers(before: Item | None, after: Item | None) -> None:
        pod = after or before
        if pod is not None:
            store.logs.wake(pod.object["metadata"]["uid"])

    def drop_oldest(before: Item | None, after: Item | None) -> None:
        if before is not None or after is None or store.count(EVENTS) <= MOST_EVENTS:
            return
        for item in sorted(store.select(EVENTS), key=_version)[:DROPPED_AT_ONCE]:
            metadata = item.object["metadata"]
            store.remove(EVENTS, metadata["name"], metadata["namespace"])

    registry.on_change("/pods", wake_followers)
    registry.on_change(EVENTS, drop_oldest)


def _version(item: Item) -> int:
    return item.version


_CLOSING_SECONDS = 2.0
_BACKLOG = 512


class Server:
    """A running API server."""

    def __init__(self, directory: Path, *, context: str, host: str, rules: Sequence[Rule]) -> None:
        """Read what the directory holds; :func:`serve` starts listening."""
        self.directory, self.context, self.host = directory, context, host
        self.kubeconfig, self.request_log = directory / "kubeconfig", directory / "requests.log"
        self.authority = certificates.ensure(directory / "certificates", host)
        self.store = Store(directory / "store.db")
        self.registry = Registry(self.store)
        bootstrap(self.registry, self.authority.read_text())
        keep_up(self.registry)
        self.api = LocalApi(self.registry)
        self.tokens = Tokens(directory / "tokens.json")
        self._faults = Faults(self.store.expire_watches)
        self.registry.on_change("/configmaps", self._faults.changed)
        for item in self.store.select("/configmaps", "kube-system"):
            self._faults.changed(None, item)
        self._log = RequestLog(self.request_log)
        self._face = Face(self.registry, self.tokens, self._faults, self._log, list(rules))
        self._runner = web.AppRunner(application(self._face), access_log=None, shutdown_timeout=_CLOSING_SECONDS)
        self.port = 0

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return f"https://{self.host}:{self.port}"

    async def listen(self, port: int) -> None:
        """Answer requests from now on; port 0 asks for that of the last time, or a free one."""
        await self._runner.setup()
        listener = _listener(self.host, port, self.directory / "port")
        self.port = listener.getsockname()[1]
        (self.directory / "port").write_text(str(self.port))
        context = certificates.server_context(self.directory / "certificates")
        await web.SockSite(self._runner, listener, ssl_context=context, backlog=_BACKLOG).start()
        self.write_kubeconfig(self.kubeconfig)

    def write_kubeconfig(self, path: Path, user: str = ADMIN) -> None:
        """Write a kubeconfig for a user, who may do what RBAC grants; a new user gets a token."""
        token = self.tokens.ensured(user)
        certificates.write(path, url=self.url, authority=self.authority, token=token, context=self.context, user=user)

    def append_log(  # noqa: PLR0913 - what identifies a log
        self, namespace: str, pod: str, uid: str, container: str, text: str, *, restart: int = 0
    ) -> None:
        """Add to the log of a container; ``restart`` counts the container's restarts."""
        self.api.append_log(namespace, pod, uid, container, text, restart=restart)

    async def close(self) -> None:
        """End all connections and close the files."""
        connections = self._runner.server.connections if self._runner.server else []
        open_ones = [connection.transport for connection in connections if connection.transport]
        self._face.end_streams()
        await self._runner.cleanup()
        for transport in open_ones:  # TLS would wait for the farewell of idle clients
            with contextlib.suppress(AttributeError):  # Python before 3.11.4, if the connection ended meanwhile
                transport.abort()
        self._log.close()
        self.store.close()


def _listener(host: str, port: int, remembered: Path) -> socket.socket:
    if port:
        return _bound(host, port)
    before = int(remembered.read_text()) if remembered.exists() else 0
    try:
        return _bound(host, before)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return _bound(host, 0)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def serve(
    directory: Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    context: str = "sandbox",
    rules: Sequence[Rule] = (),
) -> Server:
    """Start the API server of a directory, which keeps its state, certificates, tokens, kubeconfig and request log.

    ``port`` 0 takes the port of the last time if it is free. ``rules`` forbid users things. Raises OSError if the
    port is taken or the directory cannot be written.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    server = Server(directory, context=context, host=host, rules=rules)
    await server.listen(port)
    return server
