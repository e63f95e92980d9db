"""The API over HTTPS against the sandbox's own server: the same behaviour as in process."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
import yaml

from gpu_provision.sandbox.api import CONFIG_MAPS, NODES
from gpu_provision.sandbox.apiserver.server import serve
from gpu_provision.sandbox.client import HttpApi, KubeCredentials, load_credentials
from gpu_provision.sandbox.errors import SandboxError


def test_changes_are_watched(tmp_path: Path) -> None:
    """From the version of a list on, also objects larger than one read."""

    async def scenario() -> None:
        server = await serve(tmp_path)
        async with asyncio.timeout(60), HttpApi(load_credentials(server.kubeconfig)) as api:
            _, version = await api.list(CONFIG_MAPS, "default")
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"x": "x" * 500_000}}
            await api.create(CONFIG_MAPS, body, "default")
            await api.delete(CONFIG_MAPS, "big", "default")
            watch = api.watch(CONFIG_MAPS, version, "default")
            seen = [await anext(watch), await anext(watch)]
            assert [(event.type, len(event.object["data"]["x"])) for event in seen] == [
                ("ADDED", 500_000),
                ("DELETED", 500_000),
            ]
            await watch.aclose()  # type: ignore[attr-defined]
        await server.close()

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    """So that callers can wait for it to come back."""

    async def scenario() -> None:
        async with HttpApi(KubeCredentials(server="https://127.0.0.1:9", context="x", insecure=True)) as api:
            with pytest.raises(OSError, match=r"127\.0\.0\.1"):
                await api.get(NODES, "n")

    asyncio.run(scenario())


def written(tmp_path: Path, **user: str) -> Path:
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


def test_credentials_are_texts_or_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    """Relative paths are those of the kubeconfig; secrets do not show; certificates are base64 in the file itself."""
    data = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ"}
    found = load_credentials(written(tmp_path, token="secret", **data))  # noqa: S106 - it is no secret
    assert (found.server, found.authority, found.token) == ("https://127.0.0.1:1", b"CA", "secret")
    assert (found.certificate, found.key) == (b"CERT", b"KEY")
    assert not [secret for secret in ("secret", "CERT", "KEY") if secret in repr(found)]


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
