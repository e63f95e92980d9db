"""The two servers of the contract: the sandbox's API server with its controllers, and a real control plane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver import Server as SandboxServer
from gpu_provision.sandbox.apiserver import serve
from gpu_provision.sandbox.client import load_credentials
from gpu_provision.sandbox.controllers import run_controllers
from tests.contract.client import SECONDS, Object, Server
from tests.loop_thread import LoopThread
from tests.real import control_plane


async def _start(directory: Path) -> tuple[SandboxServer, asyncio.Task[None]]:
    server = await serve(directory)
    return server, asyncio.create_task(run_controllers(server.api, resources=server.api.resources))


async def _stop(server: SandboxServer, controllers: asyncio.Task[None]) -> None:
    controllers.cancel()
    await asyncio.gather(controllers, return_exceptions=True)
    await server.close()


@contextlib.contextmanager
def sandbox(directory: Path) -> Iterator[Server]:
    """Serve the sandbox's API with its controllers over TLS, like ``gpu-provision sandbox up``."""
    loop = LoopThread()
    running, controllers = loop.run(_start(directory / "sandbox"))

    def kubeconfig_of(name: str) -> Path:
        path = directory / f"kubeconfig-{name}"
        running.write_kubeconfig(path, name)
        return path

    async def compact() -> None:
        running.store.expire_watches()

    server = Server(
        kind="sandbox",
        kubeconfig=running.kubeconfig,
        directory=directory,
        access=load_credentials(running.kubeconfig),
        user=kubeconfig_of,
        compact=lambda: loop.run(compact()),
    )
    try:
        yield server
    finally:
        server.close()
        loop.run(_stop(running, controllers))
        loop.close()


@contextlib.contextmanager
def real(directory: Path) -> Iterator[Server]:
    """Start a control plane, or use the cluster of GPU_PROVISION_TEST_KUBECONFIG; skip without either."""
    given = control_plane.given()
    if given is not None:
        server = Server(kind="real", kubeconfig=given, directory=directory, access=load_credentials(given))
        with contextlib.closing(server):
            yield server
        return
    if reason := control_plane.missing("etcd", "kube-apiserver"):
        pytest.skip(reason)
    with control_plane.control_plane(directory / "plane") as plane:
        kubelets = plane.authority.issue("nodes", "127.0.0.1")
        server = Server(
            kind="real",
            kubeconfig=plane.kubeconfig,
            directory=directory,
            access=load_credentials(plane.kubeconfig),
            user=plane.kubeconfig_of,
            controllers={"kube-controller-manager", "kube-scheduler"} <= plane.programs.keys(),
            compact=_compaction(plane),
            node_flags=("--tls-cert-file", str(kubelets.certificate), "--tls-private-key-file", str(kubelets.key)),
        )
        with contextlib.closing(server):
            yield server


def _compaction(plane: control_plane.ControlPlane) -> Callable[[], None]:
    """Return a function that compacts etcd to the present version, through its HTTP gateway."""
    trust = plane.authority.trust(plane.authority.issue("contract"))
    arguments = [str(argument) for argument in plane.programs["kube-apiserver"].args]  # type: ignore[union-attr]
    etcd = next(one.partition("=")[2] for one in arguments if one.startswith("--etcd-servers="))

    def ask(path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{etcd}/v3/kv/{path}", json.dumps(body).encode())  # noqa: S310 - our etcd
        with urllib.request.urlopen(request, timeout=SECONDS, context=trust) as answer:  # noqa: S310 - see above
            return json.load(answer)

    def compact() -> None:
        revision = ask("range", {"key": "AA=="})["header"]["revision"]
        ask("compaction", {"revision": revision, "physical": True})

    return compact


def has_defaults(server: Server, namespace: str) -> bool:
    """Whether a namespace accepts pods, which before 1.24 takes its account's token, and has the API server's CA."""
    if not server.controllers:
        return True
    inside = f"/api/v1/namespaces/{namespace}"
    pod: Object = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "example.org/app:1"}]}}
    accepted = server.ask("POST", f"{inside}/pods?dryRun=All", pod)
    authority = server.ask("GET", f"{inside}/configmaps/kube-root-ca.crt")
    return accepted.code == HTTPStatus.CREATED and authority.code == HTTPStatus.OK
