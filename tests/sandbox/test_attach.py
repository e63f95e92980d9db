"""Simulated nodes attached to a cluster in another process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from gpu_provision.sandbox.api import NODES
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.attach import attach
from gpu_provision.sandbox.client import load_credentials
from gpu_provision.sandbox.errors import SandboxError
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, Timings, models
from gpu_provision.sandbox.kubelet.logs import ADDRESS, ContainerLogs, LogKey, kubelet_server

FLEET = Fleet(
    name="test",
    machines=(MachineSpec(name="gpu-1", kernel="5.15.0-122-generic", gpu=models()["Tesla T4"], gpus=1),),
    timings=Timings(speed=40, lease=5),
)


def test_a_cluster_with_nodes_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """Unless the user allows it. tests/contract shows what attached nodes do."""

    async def scenario(server: Server) -> None:
        await server.api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}})
        access, registered = load_credentials(server.kubeconfig), asyncio.Event()
        with pytest.raises(BaseExceptionGroup) as refused:
            await attach(access, FLEET)
        error = refused.value.exceptions[0]
        assert isinstance(error, SandboxError)
        assert (error.problems[0].code, error.problems[0].evidence) == ("GP720", "theirs")
        nodes = asyncio.create_task(attach(access, FLEET, beside_others=True, registered=registered))
        await registered.wait()
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)

    async def main() -> None:
        server = await serve(tmp_path)
        try:
            async with asyncio.timeout(60):
                await scenario(server)
        finally:
            await server.close()

    asyncio.run(main())


async def asked(port: int, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    connector = aiohttp.TCPConnector(ssl=context or False)  # most API servers verify no kubelet
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


def test_the_kubelet_endpoint_serves_logs() -> None:
    """Whole, the last lines, with times, of the life before, and followed until the container ends."""
    logs = ContainerLogs()
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
        async with kubelet_server(ContainerLogs(), lambda *_: {}, shown) as port:
            assert await asked(port, "/healthz", verifying) == (200, "ok")
        async with kubelet_server(ContainerLogs(), lambda *_: {}) as port:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await asked(port, "/healthz", verifying)

    asyncio.run(scenario())
