"""An API server of one node whose pods run their processes here: enough of it for the connector, and able to fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

from gpu_provision.kube.node_shell import ENTER

_PODS = "/api/v1/namespaces/{namespace}/pods"
RUNNING = {"phase": "Running"}
FORBIDDEN = 'pods is forbidden: User "odd" cannot create resource "pods" in API group "" in the namespace "own-hosts"'


@dataclass
class NodeServer:
    """What the server has, and what it has seen."""

    url: str = ""
    ready: bool = True
    status: dict[str, Any] = field(default_factory=lambda: dict(RUNNING))  # of every new pod
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)  # of every exec
    drop: bool = False  # whether connections are lost before a command's end
    forbids: bool = False  # whether the account may make no pods

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_closing])
        app.router.add_get("/api/v1/nodes/{name}", self._node)
        app.router.add_get(_PODS, self._list)
        app.router.add_post(_PODS, self._create)
        app.router.add_get(_PODS + "/{name}", self._get)
        app.router.add_delete(_PODS + "/{name}", self._delete)
        app.router.add_get(_PODS + "/{name}/exec", self._exec)
        return app

    async def _node(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "n1":
            return web.json_response({"kind": "Status", "message": "not found"}, status=404)
        condition = {"type": "Ready", "status": str(self.ready), "message": "container runtime is down"}
        return web.json_response({"metadata": {"name": "n1"}, "status": {"conditions": [condition]}})

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"items": list(self.pods.values()), "metadata": {"resourceVersion": "1"}})

    async def _create(self, request: web.Request) -> web.Response:
        if self.forbids:
            answer = {"kind": "Status", "reason": "Forbidden", "message": FORBIDDEN, "code": 403}
            return web.json_response(answer, status=403)
        pod = json.loads(await request.text())
        pod["metadata"]["uid"] = f"uid-{len(self.made)}"
        pod["status"] = dict(self.status)
        self.made.append(pod)
        self.pods[pod["metadata"]["name"]] = pod
        return web.json_response(pod, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        return web.json_response(pod or {"kind": "Status", "message": "not found"}, status=200 if pod else 404)

    async def _delete(self, request: web.Request) -> web.Response:
        self.pods.pop(request.match_info["name"], None)
        return web.json_response({})

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod = self.pods.get(request.match_info["name"])
        if pod is None or pod["status"]["phase"] != "Running":
            return web.json_response({"kind": "Status", "message": "it does not run"}, status=404)
        self.urls.append(request.path_qs)
        channels = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await channels.prepare(request)
        words = request.query.getall("command")
        assert tuple(words[: len(ENTER)]) == ENTER
        with suppress(ConnectionError):  # a client whose patience ended has gone
            if not self.drop:
                await channels.send_bytes(b"\3" + json.dumps(await _run(channels, words[len(ENTER) :])).encode())
            await channels.close()
        return channels


@web.middleware
async def _closing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep no connection open: clients under test have no end at which they would close theirs."""
    response = await handler(request)
    if not response.prepared:
        response.force_close()
    return response


async def _run(channels: web.WebSocketResponse, words: list[str]) -> dict[str, Any]:
    """Run a process with the websocket's channels, and return the Status that tells how it ended."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    feeding = asyncio.create_task(_feed(channels, process))
    await asyncio.gather(_show(channels, 1, process.stdout), _show(channels, 2, process.stderr))
    code = await process.wait()
    feeding.cancel()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "details": {"causes": causes}} if code else {"status": "Success"}


async def _feed(channels: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    async for message in channels:
        if message.type is WSMsgType.BINARY and message.data[0] == 0:
            process.stdin.write(message.data[1:])
            await process.stdin.drain()


async def _show(channels: web.WebSocketResponse, channel: int, output: asyncio.StreamReader | None) -> None:
    assert output
    while data := await output.read(4096):
        with suppress(ConnectionError):
            await channels.send_bytes(bytes([channel]) + data)


@contextmanager
def node_server() -> Iterator[NodeServer]:
    server, loop, ready = NodeServer(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(server.application(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(120)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
