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
from tests.contract.client import SECONDS, Server
from tests.loop_thread import LoopThread
from tests.real import control_plane


async def _started(directory: Path) -> tuple[SandboxServer, asyncio.Task[None]]:
    server = await serve(directory)
    return server, asyncio.create_task(run_controllers(server.api, resources=server.api.resources))


async def _ended(server: SandboxServer, controllers: asyncio.Task[None]) -> None:
    controllers.cancel()
    await asyncio.gather(controllers, return_exceptions=True)
    await server.close()


@contextlib.contextmanager
def sandbox(directory: Path) -> Iterator[Server]:
    """Serve the sandbox's API over TLS, with its controllers, as ``gpu-provision sandbox up`` does."""
    loop = LoopThread()
    running, controllers = loop.run(_started(directory / "sandbox"))

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
        loop.run(_ended(running, controllers))
        loop.close()


@contextlib.contextmanager
def real(directory: Path) -> Iterator[Server]:
    """Start a control plane, or take the cluster that GPU_PROVISION_TEST_KUBECONFIG names; skip if there is neither."""
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
    """Return what makes etcd forget every version but the present one, by its HTTP gateway."""
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


def is_furnished(server: Server, namespace: str) -> bool:
    """Say whether controllers have put into a namespace what they put into every one, so that nothing appears later.

    Its service account, with the token that old pods need, and the authority of the API server.
    """
    if not server.controllers:
        return True
    inside = f"/api/v1/namespaces/{namespace}"
    account, authority = (
        server.ask("GET", f"{inside}/{path}") for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
    )
    has_token = server.at_least(1, 24) or "secrets" in account.body
    return account.code == authority.code == HTTPStatus.OK and has_token
