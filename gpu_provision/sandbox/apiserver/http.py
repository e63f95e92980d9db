"""The HTTP server: aiohttp requests become requests for resources, answers become responses; each one is logged."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace

from aiohttp import web

from gpu_provision.sandbox.apiserver import rbac
from gpu_provision.sandbox.apiserver.credentials import ANONYMOUS, Tokens
from gpu_provision.sandbox.apiserver.errors import StatusError, no_such_path
from gpu_provision.sandbox.apiserver.faults import ApiFaults, DropConnectionError
from gpu_provision.sandbox.apiserver.nonresource import is_served, nonresource_document
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.request import JSON, Request, Response, StreamResponse, error_response
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest, RequestLog, timestamp
from gpu_provision.sandbox.apiserver.resources import parse_path
from gpu_provision.sandbox.apiserver.rest import Answer, handle, may_create, verb_of
from gpu_provision.sandbox.apiserver.selectors import selected_name
from gpu_provision.sandbox.apiserver.tables import is_acceptable

_LOG = logging.getLogger(__name__)
_MAX_BODY_BYTES = 3 * 1024 * 1024
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


@dataclass
class HttpServer:
    """What the handler needs; ``streams`` are the watches and logs being followed."""

    registry: Registry
    tokens: Tokens
    faults: ApiFaults
    log: RequestLog
    streams: set[asyncio.Task[object]] = field(default_factory=set)

    def application(self) -> web.Application:
        """Return the aiohttp application: one handler for everything."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self.serve)
        return app

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
            response = web.Response(status=answer.code, body=answer.body, headers={"Content-Type": answer.type})
            for name, value in answer.headers:
                response.headers.add(name, value)
            return response
        return await self._send_stream(request, answer)

    def end_streams(self) -> None:
        """End what would otherwise go on for minutes, also streams that no client reads any more."""
        for task in self.streams:
            task.cancel()

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
        catalog, accept = self.registry.catalog, request.headers.get("Accept", "")
        target = parse_path(request.path, catalog)
        if target is None:
            if user == ANONYMOUS and not request.path.startswith(_PUBLIC):
                raise rbac.forbidden_path(user, request.method, request.path)
            if found := nonresource_document(catalog, request.path, accept, request.host):
                return found
            if is_served(catalog, request.path):
                raise no_such_path()
            return Response(404, b"404 page not found\n", "text/plain")
        if target.subresource != "log" and not is_acceptable(accept):
            raise StatusError(406, "NotAcceptable", "406: Not Acceptable")
        call = Request(request.method, target, request.query, request.headers, await _read_body(request), user)
        self._authorize(call)
        return handle(self.registry, call)

    def _authorize(self, request: Request) -> None:
        authorizer, access = rbac.Authorizer(self.registry.store), _access(request)
        authorizer.check(access)
        if may_create(request) and self.registry.is_missing(request.target):
            authorizer.check(replace(access, verb="create"))
        if rbac.needs_escalation_check(request):
            # What the request would write is learned from a dry run of it.
            query, headers = {**request.query, "dryRun": "All"}, {**request.headers, "Accept": JSON}
            answer = handle(self.registry, replace(request, query=query, headers=headers))
            if isinstance(answer, Response):
                authorizer.check_escalation(request, json.loads(answer.body))

    def _log(self, request: web.Request, user: str, code: int, started: str) -> None:
        entry = LoggedRequest(
            time=started,
            verb=request.method,
            path=request.path,
            query=request.query_string,
            agent=request.headers.get("User-Agent", ""),
            user=user,
            code=code,
            dry_run=request.query.get("dryRun") == "All",
        )
        self.log.add(entry)


async def _read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"Request entity too large: limit is {_MAX_BODY_BYTES}"
        raise StatusError(413, "RequestEntityTooLarge", message) from error


def _access(request: Request) -> rbac.AccessRequest:
    target, info, verb = request.target, request.info, verb_of(request)
    resource = f"{info.plural}/{target.subresource}" if target.subresource else info.plural
    namespace = target.name if info.storage == "/namespaces" else target.namespace
    name = target.name
    if not name and verb in ("list", "watch"):
        name = selected_name(request.query.get("fieldSelector", ""), info)
    return rbac.AccessRequest(request.user, verb, info.group, resource, namespace, name)
