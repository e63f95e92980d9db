"""The API over HTTPS against the sandbox's own server: the same behaviour as in process."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from gpu_provision.sandbox.api import ApiResource, Object
from gpu_provision.sandbox.apiserver.server import serve
from gpu_provision.sandbox.client import HttpApi, KubeCredentials, load_credentials
from gpu_provision.sandbox.errors import SandboxError

CONFIG_MAPS, PODS, NODES = (ApiResource("", "v1", kind) for kind in ("configmaps", "pods", "nodes"))


def on_server(directory: Path, scenario: Callable[[HttpApi], Awaitable[None]]) -> None:
    """Run a scenario with a client of a server."""

    async def main() -> None:
        server = await serve(directory)
        try:
            async with HttpApi(load_credentials(server.kubeconfig)) as api:
                await scenario(api)
        finally:
            await server.close()

    asyncio.run(main())


def config_map(name: str, **data: str) -> Object:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_changes_are_watched(tmp_path: Path) -> None:
    """From the version of a list on, also objects larger than one read."""

    async def scenario(api: HttpApi) -> None:
        _, version = await api.list(CONFIG_MAPS, "default")
        seen: list[tuple[str, int]] = []

        async def watch() -> None:
            async for event in api.watch(CONFIG_MAPS, version, "default"):
                size = len(event.object.get("data", {}).get("x", ""))
                seen.append((event.type, size))

        watching = asyncio.create_task(watch())
        await api.create(CONFIG_MAPS, config_map("big", x="x" * 500_000), "default")
        await api.delete(CONFIG_MAPS, "big", "default")
        async with asyncio.timeout(60):
            while len(seen) < 2:  # noqa: ASYNC110 - the list is filled by the watch itself
                await asyncio.sleep(0.01)
        watching.cancel()
        assert seen == [("ADDED", 500_000), ("DELETED", 500_000)]

    on_server(tmp_path, scenario)


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    """So that callers can wait for it to come back."""

    async def scenario() -> None:
        async with HttpApi(KubeCredentials(server="https://127.0.0.1:9", context="x", insecure=True)) as api:
            with pytest.raises(OSError, match=r"127\.0\.0\.1"):
                await api.get(NODES, "n")

    asyncio.run(scenario())


def written(tmp_path: Path, **user: str) -> Path:
    """Write a kubeconfig with one context ``one`` and one user."""
    document = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1/", "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "ca.crt").write_text("CA")
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_token_and_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    """Relative paths are those of the kubeconfig; secrets do not show."""
    found = load_credentials(written(tmp_path, token="secret"))  # noqa: S106 - it is no secret
    assert (found.server, found.authority, found.token) == ("https://127.0.0.1:1", b"CA", "secret")
    assert "secret" not in repr(found)


def test_client_certificates_as_data(tmp_path: Path) -> None:
    """Base64 in the file itself."""
    data = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ"}
    found = load_credentials(written(tmp_path, **data))
    assert (found.certificate, found.key) == (b"CERT", b"KEY")


@pytest.mark.parametrize(
    ("context", "user", "said"),
    [
        ("two", {}, "context 'two'"),
        ("one", {"exec": "plugin"}, "need a token or a client certificate"),
        ("one", {"client-certificate": "none.crt"}, "none.crt cannot be read"),
    ],
)
def test_what_cannot_be_used_is_one_finding(tmp_path: Path, context: str, user: dict[str, str], said: str) -> None:
    """With the file's name."""
    with pytest.raises(SandboxError) as refused:
        load_credentials(written(tmp_path, **user), context)
    assert refused.value.problems[0].code == "GP300"
    assert said in str(refused.value)
