"""The API server of one sandbox: HTTP handler, first objects, start and end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources as files
from pathlib import Path

import yaml
from aiohttp import web

from gpu_provision.sandbox.api import Object, ignoring
from gpu_provision.sandbox.apiserver import auth
from gpu_provision.sandbox.apiserver.auth import ANONYMOUS, Tokens
from gpu_provision.sandbox.apiserver.errors import StatusError, no_such_path
from gpu_provision.sandbox.apiserver.faults import ApiFaults, DropConnectionError
from gpu_provision.sandbox.apiserver.list_watch import required_value
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.nonresource import is_served, nonresource_document
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.request import JSON, Request, Response, StreamResponse, error_response
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest, RequestLog, timestamp
from gpu_provision.sandbox.apiserver.resources import RequestInfo, parse_path
from gpu_provision.sandbox.apiserver.rest import Answer, handle, may_create, verb_of
from gpu_provision.sandbox.apiserver.store import Store, StoredObject

_LOG = logging.getLogger(__name__)
_MAX_BODY_BYTES = 3 * 1024 * 1024
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


@dataclass
class HttpServer:
    """Answers HTTP requests; ``streams`` are the open watches and followed logs."""

    registry: Registry
    tokens: Tokens
    faults: ApiFaults
    log: RequestLog
    streams: set[asyncio.Task[object]] = field(default_factory=set)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request and log it."""
        started = timestamp()
        try:
            answer, user = await self._answer(request)
        except DropConnectionError:
            self._log(request, "", 0, started)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        self._log(request, user, answer.code if isinstance(answer, Response) else 200, started)
        if isinstance(answer, Response):
            headers = {"Content-Type": answer.type, **answer.headers}
            return web.Response(status=answer.code, body=answer.body, headers=headers)
        return await self._send_stream(request, answer)

    async def _send_stream(self, request: web.Request, answer: StreamResponse) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"  # noqa: S101 - for the type checker
        self.streams.add(task)
        response = web.StreamResponse(headers={"Content-Type": answer.type, "Cache-Control": "no-cache, private"})
        await response.prepare(request)
        try:
            async for piece in answer.pieces:
                if piece:
                    await response.write(piece)
            await response.write_eof()
        except ConnectionError:
            _LOG.debug("%s: the client has gone", request.path)
        finally:
            self.streams.discard(task)
        return response

    async def _answer(self, request: web.Request) -> tuple[Answer, str]:
        user = ""
        try:
            await self.faults.apply(request.method, request.path, request.headers.get("User-Agent", ""))
            user = self.tokens.authenticate(request.headers.get("Authorization", ""))
            return await self._route(request, user), user
        except StatusError as error:
            return error_response(error), user
        except (DropConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug in the server must not end the cluster
            _LOG.exception("%s %s failed", request.method, request.path)
            message = f"the sandbox's API server failed: {type(error).__name__}: {error}"
            return error_response(StatusError(500, "InternalError", message)), user

    async def _route(self, request: web.Request, user: str) -> Answer:
        catalog = self.registry.catalog
        target = parse_path(request.path, catalog)
        if target is None:
            if user == ANONYMOUS and not request.path.startswith(_PUBLIC):
                message = f'forbidden: User "{user}" cannot {request.method.lower()} path "{request.path}"'
                raise StatusError(403, "Forbidden", message)
            if document := nonresource_document(catalog, request.path, request.host):
                return document
            if is_served(catalog, request.path):
                raise no_such_path()
            return Response(404, b"404 page not found\n", "text/plain")
        call = Request(request.method, target, request.query, request.headers, await _read_body(request), user)
        self._authorize(call)
        return handle(self.registry, call)

    def _authorize(self, request: Request) -> None:
        authorizer, target, info = auth.Authorizer(self.registry.store, request.user), request.target, request.info
        resource = "/".join(filter(None, (info.plural, target.subresource)))
        namespace, name, verb = target.namespace, target.name, verb_of(request)
        if verb in ("list", "watch"):
            name = required_value(request.query.get("fieldSelector", ""), "metadata.name")
        if info.storage == "/namespaces":
            namespace = target.name
        access = auth.AccessRequest(verb, info.group, resource, namespace, name)
        authorizer.check(access)
        if may_create(request) and self.registry.is_missing(target):
            authorizer.check(replace(access, verb="create"))
        is_write = request.method in ("POST", "PUT", "PATCH")
        if is_write and info.group == auth.GROUP and not authorizer.is_master:
            # A dry run returns the object that the request would write.
            query, headers = {**request.query, "dryRun": "All"}, {**request.headers, "Accept": JSON}
            answer = handle(self.registry, replace(request, query=query, headers=headers))
            if isinstance(answer, Response):
                authorizer.check_escalation(request, json.loads(answer.body))

    def _log(self, request: web.Request, user: str, code: int, started: str) -> None:
        agent, dry_run = request.headers.get("User-Agent", ""), request.query.get("dryRun") == "All"
        self.log.add(
            LoggedRequest(started, request.method, request.path, request.query_string, agent, user, code, dry_run)
        )


async def _read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"Request entity too large: limit is {_MAX_BODY_BYTES}"
        raise StatusError(413, "RequestEntityTooLarge", message) from error


Profile = Callable[[Registry], None]
_OPTIONS = WriteOptions(manager="kube-apiserver")
_EVENTS = "/events"
MAX_EVENTS, DROPPED_AT_ONCE = 5000, 500
"""A real cluster deletes Events after an hour; a sandbox keeps so many of the newest."""
_CLOSING_SECONDS = 2.0
_BACKLOG = 512


def bootstrap(registry: Registry, authority: str) -> None:
    """Create missing first objects; ``authority`` is the PEM text of the server's CA."""
    _keep_namespace_defaults(registry, authority)
    for obj in yaml.safe_load_all((files.files(__package__) / "bootstrap.yaml").read_text("utf-8")):
        ensure(registry, obj)


def _keep_namespace_defaults(registry: Registry, authority: str) -> None:
    """Create the service account ``default`` and the ConfigMap ``kube-root-ca.crt`` in each namespace."""
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    root: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}

    def create_defaults(namespace: str) -> None:
        for obj in (account, {**root, "data": {"ca.crt": authority}}):
            with ignoring(403, 404):  # a terminating or deleted namespace
                ensure(registry, {**obj, "metadata": {**obj["metadata"], "namespace": namespace}})

    def on_namespace(before: StoredObject | None, after: StoredObject | None) -> None:
        if before is None and after is not None:
            create_defaults(after.object["metadata"]["name"])

    def on_default(before: StoredObject | None, after: StoredObject | None) -> None:
        if after is None and before and before.object["metadata"]["name"] in ("default", "kube-root-ca.crt"):
            create_defaults(before.object["metadata"]["namespace"])

    registry.on_change("/namespaces", on_namespace)
    registry.on_change("/serviceaccounts", on_default)
    registry.on_change("/configmaps", on_default)
    for item in registry.store.select("/namespaces"):
        create_defaults(item.object["metadata"]["name"])


def ensure(registry: Registry, obj: Object) -> None:
    """Create an object that is missing; its status is written as well."""
    kind = obj["apiVersion"], obj["kind"]
    info = next(info for info in registry.catalog if (info.api_version, info.kind) == kind)
    target = RequestInfo(info, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    if not registry.is_missing(target):
        return
    status = obj.get("status")
    registry.create(target, obj, _OPTIONS)
    if status and info.has_status:
        registry.patch(replace(target, subresource="status"), lambda made: {**made, "status": status}, _OPTIONS)


def start_maintenance(registry: Registry) -> None:
    """Notify followers of logs when their pods change, and delete the oldest Events."""
    store = registry.store

    def notify_followers(before: StoredObject | None, after: StoredObject | None) -> None:
        if pod := after or before:
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

    def __init__(self, directory: Path, *, context: str, host: str, profile: Profile | None = None) -> None:
        """Load the state of the directory; `serve` starts listening."""
        self.directory, self.context, self.host = directory, context, host
        self.kubeconfig, self.request_log = directory / "kubeconfig", directory / "requests.log"
        self.authority = auth.ensure_certificates(directory / "certificates", host)
        self.store = Store(directory / "store.db")
        self.registry = Registry(self.store)
        bootstrap(self.registry, self.authority.read_text())
        if profile:
            profile(self.registry)
        start_maintenance(self.registry)
        self.api = LocalApi(self.registry)
        self.tokens = auth.Tokens(directory / "tokens.json")
        faults = ApiFaults(self.store.expire_watches)
        self.registry.on_change("/configmaps", faults.on_change)
        for item in self.store.select("/configmaps", "kube-system"):
            faults.on_change(None, item)
        self._log = RequestLog(self.request_log)
        self.http = HttpServer(self.registry, self.tokens, faults, self._log)
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self.http.serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSING_SECONDS)
        self.port = 0

    @property
    def url(self) -> str:
        """The server's address."""
        return f"https://{self.host}:{self.port}"

    async def listen(self, port: int) -> None:
        """Start to answer requests; port 0 means the previous port, or a free one."""
        await self._runner.setup()
        listener = _listen(self.host, port, self.directory / "port")
        self.port = listener.getsockname()[1]
        (self.directory / "port").write_text(str(self.port))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.directory / "certificates" / "server.pem")
        await web.SockSite(self._runner, listener, ssl_context=context, backlog=_BACKLOG).start()
        self.write_kubeconfig(self.kubeconfig)

    def write_kubeconfig(self, path: Path, user: str = auth.ADMIN) -> None:
        """Write a kubeconfig for a user; a new user gets a token."""
        token = self.tokens.token(user)
        auth.write_kubeconfig(
            path, url=self.url, authority=self.authority, token=token, context=self.context, user=user
        )

    async def close(self) -> None:
        """End all connections and close the files."""
        connections = self._runner.server.connections if self._runner.server else []
        open_ones = [connection.transport for connection in connections if connection.transport]
        for task in self.http.streams:  # they would last for minutes, even without a client
            task.cancel()
        await self._runner.cleanup()
        for transport in open_ones:  # TLS would wait for the close_notify of idle clients
            with contextlib.suppress(AttributeError):  # Python before 3.11.4, if the connection ended meanwhile
                transport.abort()
        self._log.close()
        self.store.close()


def _listen(host: str, port: int, remembered: Path) -> socket.socket:
    """Listen on the port, or for 0 on the previous one, or on a free one if another process uses that."""
    ports = [port] if port else [int(remembered.read_text()), 0] if remembered.exists() else [0]
    for number in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            listener.close()
            if number == ports[-1] or error.errno != errno.EADDRINUSE:
                raise
        else:
            break
    return listener


async def serve(
    directory: Path, *, port: int = 0, host: str = "127.0.0.1", context: str = "sandbox", profile: Profile | None = None
) -> Server:
    """Start the API server of a directory, which has its state, certificates, tokens, kubeconfig and request log.

    ``port`` 0 means the previous port if it is free; ``profile`` adds what a distribution of Kubernetes has besides.
    Raises OSError for a used port or an unwritable directory.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    server = Server(directory, context=context, host=host, profile=profile)
    await server.listen(port)
    return server
