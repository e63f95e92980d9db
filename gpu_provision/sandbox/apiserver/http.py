"""The HTTP face: aiohttp requests become calls, answers become responses, and each request is logged."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace

from aiohttp import web

from gpu_provision.sandbox.apiserver import auth, escalation
from gpu_provision.sandbox.apiserver.authorizer import Authorizer
from gpu_provision.sandbox.apiserver.calls import JSON, Call, Reply, Stream, refusal
from gpu_provision.sandbox.apiserver.documents import document, is_served
from gpu_provision.sandbox.apiserver.faults import Asked, DropConnection, Faults
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.requestlog import Request, RequestLog, timestamp
from gpu_provision.sandbox.apiserver.rest import handle, may_create, verb_of
from gpu_provision.sandbox.apiserver.selectors import named_by
from gpu_provision.sandbox.apiserver.status import StatusError, no_such_path, not_acceptable, too_large
from gpu_provision.sandbox.apiserver.tables import is_acceptable
from gpu_provision.sandbox.apiserver.targets import Target, target

_LOG = logging.getLogger(__name__)
_LARGEST_BODY = 3 * 1024 * 1024
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


@dataclass
class Face:
    """What the handler needs; ``rules`` forbid users things, ``streams`` are the watches and logs being followed."""

    registry: Registry
    tokens: auth.Tokens
    faults: Faults
    log: RequestLog
    rules: list[auth.Rule]
    streams: set[asyncio.Task[object]] = field(default_factory=set)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request and log it."""
        user, code, started = "", 0, timestamp()
        try:
            answer, user = await self._answer(request)
            code = answer.code if isinstance(answer, Reply) else 200
            if isinstance(answer, Stream):
                self._log(request, user, code, started)
                return await self._streamed(request, answer)
        except DropConnection:
            self._log(request, user, 0, started)
            return _dropped(request)
        self._log(request, user, code, started)
        return _response(request, answer)

    def end_streams(self) -> None:
        """End what would otherwise go on for minutes, also those that nobody reads any more."""
        for task in self.streams:
            task.cancel()

    async def _streamed(self, request: web.Request, answer: Stream) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"  # noqa: S101 - for the type checker
        self.streams.add(task)
        try:
            return await _streamed(request, answer)
        finally:
            self.streams.discard(task)

    async def _answer(self, request: web.Request) -> tuple[Reply | Stream, str]:
        user = ""
        try:
            asked = Asked(request.method, request.path, request.headers.get("User-Agent", ""))
            await self.faults.suffer(asked)
            user = self.tokens.user_of(request.headers.get("Authorization", ""))
            return await self._resolved(request, user), user
        except StatusError as error:
            return refusal(error), user
        except (DropConnection, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the cluster
            _LOG.exception("%s %s failed", request.method, request.path)
            message = f"the sandbox's API server failed: {type(error).__name__}: {error}"
            return refusal(StatusError(500, "InternalError", message)), user

    async def _resolved(self, request: web.Request, user: str) -> Reply | Stream:
        found = target(request.path, self.registry.catalog)
        if found is None:
            if user == auth.ANONYMOUS and not request.path.startswith(_PUBLIC):
                raise auth.forbidden_path(user, request.method, request.path)
            if made := document(self.registry, request.path, dict(request.headers), request.host):
                return made
            if is_served(self.registry, request.path):
                raise no_such_path()
            return Reply(404, b"404 page not found\n", "text/plain")
        if found.subresource != "log" and not is_acceptable(request.headers.get("Accept", "")):
            raise not_acceptable()
        call = Call(request.method, found, request.query, request.headers, await _body(request), user)
        attempt = _attempt(call, found)
        auth.check(attempt, self.rules)
        authorizer = Authorizer(self.registry.store)
        authorizer.check(attempt)
        if may_create(call) and self.registry.is_missing(found):
            authorizer.check(replace(attempt, verb="create"))
        await escalation.check(self.registry, authorizer, call)
        return await handle(self.registry, call)

    def _log(self, request: web.Request, user: str, code: int, started: str) -> None:
        entry = Request(
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


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(_LARGEST_BODY) from error


def _attempt(call: Call, found: Target) -> auth.Attempt:
    resource = f"{found.info.plural}/{found.subresource}" if found.subresource else found.info.plural
    namespace = found.name if found.info.storage == "/namespaces" else found.namespace
    verb = verb_of(call)
    name = found.name or (
        named_by(call.query.get("fieldSelector", ""), found.info.storage) if verb in ("list", "watch") else ""
    )
    return auth.Attempt(call.user, verb, found.info.group, resource, namespace, name)


def _response(request: web.Request, answer: Reply) -> web.Response:
    body = answer.body
    if answer.type == JSON and request.headers.get("User-Agent", "").startswith(("curl/", "Wget/")):
        body = json.dumps(json.loads(body), indent=2, ensure_ascii=False).encode() + b"\n"
    response = web.Response(status=answer.code, body=body, headers={"Content-Type": answer.type})
    for name, value in answer.headers:
        response.headers.add(name, value)
    return response


async def _streamed(request: web.Request, answer: Stream) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": answer.type, "Cache-Control": "no-cache, private"})
    await response.prepare(request)
    try:
        async for piece in answer.pieces:
            if piece:
                await response.write(piece)
        await response.write_eof()
    except ConnectionError:
        _LOG.debug("%s: the client has gone", request.path)
    return response


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def application(face: Face) -> web.Application:
    """Return the aiohttp application: one handler for everything."""
    app = web.Application(client_max_size=_LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", face.serve)
    return app
