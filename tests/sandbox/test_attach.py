"""Simulated nodes attached to a cluster in another process."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, PODS, ObjectPath
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.attach import attach
from gpu_provision.sandbox.client import HttpApi, load_credentials
from gpu_provision.sandbox.errors import SandboxError
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, Timings, models
from gpu_provision.sandbox.kubelet.logs import ADDRESS, KeptLogs, LogKey, kubelet_server
from gpu_provision.sandbox.kubelet.node import SIMULATED

FLEET = Fleet(
    name="test",
    machines=(MachineSpec(name="gpu-1", kernel="5.15.0-122-generic", gpu=models()["Tesla T4"], gpus=1),),
    timings=Timings(speed=40, lease=5),
)


def on_server(directory: Path, scenario: Callable[[Server], Awaitable[None]]) -> None:
    """Run a scenario beside an API server without nodes, at most a minute long."""

    async def main() -> None:
        server = await serve(directory)
        try:
            async with asyncio.timeout(60):
                await scenario(server)
        finally:
            await server.close()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def attached(server: Server, **options: Any) -> AsyncIterator[None]:
    """Attach the fleet while the context lasts."""
    registered = asyncio.Event()
    access = load_credentials(server.kubeconfig)
    nodes = asyncio.create_task(attach(access, FLEET, registered=registered, **options))
    await registered.wait()
    yield
    nodes.cancel()
    await asyncio.gather(nodes, return_exceptions=True)


def test_nodes_register_run_pods_and_send_their_output(tmp_path: Path) -> None:
    """Over HTTPS, with a kubeconfig; the sandbox's server keeps the output itself."""

    async def logged(server: Server) -> str:
        async with HttpApi(load_credentials(server.kubeconfig)) as api:
            return str(await api.request("GET", ObjectPath(PODS, "default", "p", "log")))

    async def scenario(server: Server) -> None:
        async with attached(server):
            assert SIMULATED in (await server.api.get(NODES, "gpu-1"))["metadata"]["annotations"]
            container = {"name": "main", "image": "registry.example/busybox:1", "command": ["echo", "hello"]}
            spec = {"nodeName": "gpu-1", "restartPolicy": "Never", "containers": [container]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
            await server.api.create(PODS, body, "default")
            while not objects.is_finished(await server.api.get(PODS, "p", "default")):  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(0.02)
            while await logged(server) != "hello\n":  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(0.02)

    on_server(tmp_path, scenario)


def test_a_cluster_with_nodes_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """Unless the user allows it."""

    async def scenario(server: Server) -> None:
        await server.api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}})
        with pytest.raises(BaseExceptionGroup) as refused:
            await attach(load_credentials(server.kubeconfig), FLEET)
        error = refused.value.exceptions[0]
        assert isinstance(error, SandboxError)
        assert (error.problems[0].code, error.problems[0].evidence) == ("GP720", "theirs")
        async with attached(server, beside_others=True):
            pass

    on_server(tmp_path, scenario)


async def asked(port: int, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Return status and text of the kubelet endpoint's answer."""
    connector = aiohttp.TCPConnector(ssl=context or False)  # most API servers verify no kubelet
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


def test_the_kubelet_endpoint_serves_logs() -> None:
    """Whole, the last lines, with times, of the life before, and followed until the container ends."""
    logs = KeptLogs()
    here = LogKey("n", "p", "uid", "c", 1)
    logs.append(here._replace(restart=0), "before\n")
    logs.append(here, "one\ntwo\n")
    waiting: dict[str, Any] = {"waiting": {"reason": "ImagePullBackOff"}}
    of_main: Iterator[dict[str, Any]] = iter([{"running": {}}] * 5 + [{"terminated": {}}])

    def status_of(_namespace: str, _pod: str, container: str) -> dict[str, Any]:
        return {"state": next(of_main) if container == "c" else waiting} if container != "none" else {}

    async def scenario() -> None:
        async with kubelet_server(logs, status_of) as port:
            base = "/containerLogs/n/p/c"
            for query, text in (
                ("", "one\ntwo\n"),
                ("tailLines=1", "two\n"),
                ("limitBytes=2", "on"),
                ("previous=true", "before\n"),
            ):
                assert await asked(port, f"{base}?{query}") == (200, text)
            assert (await asked(port, f"{base}?timestamps=true"))[1].splitlines()[0].endswith("Z one")
            assert await asked(port, "/containerLogs/n/p/none") == (200, "")
            assert (await asked(port, "/containerLogs/n/p/none?previous=true"))[0] == 400
            why = 'container "waits" in pod "p" is waiting to start: trying and failing to pull image'
            assert await asked(port, "/containerLogs/n/p/waits") == (400, why)
            assert (await asked(port, "/exec/n/p/c"))[0] == 501
            following = asyncio.create_task(asked(port, f"{base}?follow=true"))
            await asyncio.sleep(0)
            logs.append(here, "three\n")
            assert await following == (200, "one\ntwo\nthree\n")

    asyncio.run(scenario())


def test_the_kubelet_endpoint_shows_the_certificate_it_is_given(tmp_path: Path) -> None:
    """An API server that verifies its kubelets asks no other."""
    authority = trustme.CA()
    issued = authority.issue_cert(ADDRESS)
    shown = (tmp_path / "kubelet.crt", tmp_path / "kubelet.key")
    issued.cert_chain_pems[0].write_to_path(shown[0])
    issued.private_key_pem.write_to_path(shown[1])
    verifying = ssl.create_default_context()
    authority.configure_trust(verifying)

    async def scenario() -> None:
        async with kubelet_server(KeptLogs(), lambda *_: {}, shown) as port:
            assert await asked(port, "/healthz", verifying) == (200, "ok")
        async with kubelet_server(KeptLogs(), lambda *_: {}) as port:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await asked(port, "/healthz", verifying)

    asyncio.run(scenario())
