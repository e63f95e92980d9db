"""Starting and ending the API server of one sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from gpu_provision.sandbox.apiserver import certificates, kubeconfig
from gpu_provision.sandbox.apiserver.auth import ADMIN, Rule, Tokens
from gpu_provision.sandbox.apiserver.bootstrap import bootstrap
from gpu_provision.sandbox.apiserver.faults import Faults
from gpu_provision.sandbox.apiserver.http import Face, application
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.requestlog import RequestLog
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.apiserver.upkeep import keep_up

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
        kubeconfig.write(path, url=self.url, authority=self.authority, token=token, context=self.context, user=user)

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
