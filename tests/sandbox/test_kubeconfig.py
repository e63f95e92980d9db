"""Credentials from a kubeconfig."""

from __future__ import annotations

import base64
from pathlib import Path
from random import Random

import pytest
import yaml

from gpu_provision.model.findings import UsageError
from gpu_provision.sandbox.kubeconfig import credentials
from tests import fuzzing


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
        ("two", {}, "no context 'two'"),
        ("one", {"exec": "plugin"}, "need a token or a client certificate"),
        ("one", {"client-certificate": "none.crt"}, "client-certificate cannot be read"),
    ],
)
def test_what_cannot_be_used_is_one_finding(tmp_path: Path, context: str, user: dict[str, str], said: str) -> None:
    """With the file's name and what it has instead."""
    with pytest.raises(UsageError) as refused:
        credentials(written(tmp_path, **user), context)
    assert refused.value.findings[0].code == "GP721"
    assert said in refused.value.findings[0].what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[" * 10_000, "cannot be read", id="nested"),
        ("- x", "this is no kubeconfig"),
        ("contexts: [x]", "this is no kubeconfig"),
        ("users: [{name: u, user: {token: [secret]}}]", "this is no kubeconfig"),
        (
            "contexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: x}}]",
            "names no server",
        ),
    ],
)
def test_what_is_no_kubeconfig_is_one_finding(tmp_path: Path, text: str, said: str) -> None:
    """With the place, and without what stands there: it may be a secret."""
    (tmp_path / "config").write_text(text)
    with pytest.raises(UsageError) as refused:
        credentials(tmp_path / "config", "a")
    (finding,) = refused.value.findings
    assert said in finding.what
    assert "secret" not in str(finding)


def test_certificates_that_are_none_are_one_finding(tmp_path: Path) -> None:
    """They are looked at when TLS is set up."""
    with pytest.raises(UsageError, match="certificates of context one cannot be used"):
        credentials(written(tmp_path, token="secret")).ssl_context()  # noqa: S106 - it is no secret


def test_kubeconfigs_of_any_content_are_read(tmp_path: Path) -> None:
    """Or refused by a finding."""
    path = written(tmp_path, token="secret", **{"client-key": "ca.crt"})  # noqa: S106 - it is no secret
    text = path.read_text()
    document = yaml.safe_load(text)
    data = {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
    document["users"][0]["user"] |= data
    document["clusters"][0]["cluster"] |= {"certificate-authority-data": "Q0E="}

    def made(dice: Random) -> str:
        if dice.random() < 0.5:
            return fuzzing.mutated_text(dice, text)
        return yaml.safe_dump(fuzzing.mutated_value(dice, document))

    def read(given: str) -> None:
        path.write_text(given, errors="replace")
        credentials(path).ssl_context()

    fuzzing.hold(made, read, UsageError)
