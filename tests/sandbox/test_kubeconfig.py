"""Credentials from a kubeconfig."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from gpu_provision.model.findings import UsageError
from gpu_provision.sandbox.kubeconfig import credentials


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
    found = credentials(written(tmp_path, token="secret"))  # noqa: S106 - it is no secret
    assert (found.server, found.authority, found.token) == ("https://127.0.0.1:1", b"CA", "secret")
    assert "secret" not in repr(found)


def test_client_certificates_as_data(tmp_path: Path) -> None:
    """Base64 in the file itself."""
    data = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ"}
    found = credentials(written(tmp_path, **data))
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
    with pytest.raises(UsageError) as refused:
        credentials(written(tmp_path, **user), context)
    assert refused.value.findings[0].code == "GP300"
    assert said in str(refused.value)
