"""Kubeconfigs: damaged entries are one finding with file and entry, several files are one, and nothing is quoted."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gpu_provision.kube import config as reader
from gpu_provision.kube import credentials as plugins
from gpu_provision.kube.client import connect
from gpu_provision.kube.config import api_client, resolve_context
from gpu_provision.kube.observe import observe_facts
from gpu_provision.model.findings import ProvisionError, UsageError
from gpu_provision.model.inventory import ClusterConfig
from gpu_provision.sandbox import lifecycle
from gpu_provision.sandbox.state import Sandbox
from tests import fuzzing
from tests.components.builders import inventory
from tests.kube.conftest import kubeconfig
from tests.sandbox.apiserver.conftest import Running

SECRET = "hunter2hunter2"  # noqa: S105 - a marker that no message may show
VERSION = "client.authentication.k8s.io/v1"
URL = "https://127.0.0.1:1"


def _encoded(content: bytes | str) -> str:
    return base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


_MADE = trustme.CA().issue_cert(common_name="ada")
CERTIFICATE, KEY = _MADE.cert_chain_pems[0].bytes(), _MADE.private_key_pem.bytes()
OTHER_KEY = trustme.CA().issue_cert(common_name="eve").private_key_pem.bytes()

LOCKED_KEY = load_pem_private_key(KEY, None).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode())
)


def _exec(**parts: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": VERSION, "command": "no-such-plugin", **parts}}


def _token(**claims: Any) -> str:
    return f"x.{_encoded(json.dumps(claims)).rstrip('=')}.{SECRET}"


BAD_USERS: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "a token that is a number": ({"token": 12345678}, "token", "must be text"),
    "a token of two lines": ({"token": f"{SECRET}\nx"}, "token", "no token may hold"),
    "no token file": ({"tokenFile": "none"}, "tokenFile", "none cannot be read: No such file"),
    "a folder as token file": ({"tokenFile": "."}, "tokenFile", "Is a directory"),
    "an empty token file": ({"tokenFile": "empty"}, "tokenFile", "it is empty"),
    "no certificate file": ({"client-certificate": "none", "client-key": "empty"}, "client-certificate", "No such"),
    "no key file": ({"client-certificate": "cert.pem", "client-key": "none"}, "client-key", "none cannot be read"),
    "no key": ({"client-certificate": "cert.pem"}, "client-certificate", "no PEM certificate with its"),
    "wrong base64": (
        {"client-certificate-data": _encoded(CERTIFICATE), "client-key-data": f"{SECRET}!"},
        "client-key-data",
        "not base64",
    ),
    "wrong PEM": (
        {"client-certificate-data": _encoded(SECRET), "client-key-data": _encoded(SECRET)},
        "client-certificate",
        "no PEM certificate with its unencrypted private key",
    ),
    "a key of another certificate": (
        {"client-certificate-data": _encoded(CERTIFICATE), "client-key-data": _encoded(OTHER_KEY)},
        "client-certificate",
        "KEY_VALUES_MISMATCH",
    ),
    "a key with a password": (
        {"client-certificate-data": _encoded(CERTIFICATE), "client-key-data": _encoded(LOCKED_KEY)},
        "client-certificate",
        "unencrypted",
    ),
    "a cloud's provider": ({"auth-provider": {"name": "gcp"}}, "auth-provider", "name a credential plugin"),
    "no OIDC token": ({"auth-provider": {"name": "oidc"}}, "auth-provider.config.id-token", "it is empty"),
    "no command": (_exec(command=""), "exec.command", "it is missing"),
    "an unknown version": (_exec(apiVersion="v3"), "exec.apiVersion", "must be one of"),
    "an unknown mode": (_exec(interactiveMode="never"), "exec.interactiveMode", "must be Never"),
    "arguments that are numbers": (_exec(args=["--port", 80]), "exec.args", "list of texts"),
    "variables as a mapping": (_exec(env={"SECRET_TOKEN": SECRET}), "exec.env", "must be a list"),
    "a variable as a mapping": (_exec(env=[{"SECRET_TOKEN": SECRET}]), "exec.env[0].name", "it is missing"),
    "a variable that is a list": (_exec(env=[["TOKEN", SECRET]]), "exec.env[0]", "must be a mapping"),
}


@pytest.fixture
def unheard(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let nothing reach stderr or a log, but from a sandbox that serves other tests of this process."""
    caplog.set_level(logging.INFO)
    yield
    said = set(capfd.readouterr().err.splitlines())
    logged = {(record.name.startswith("gpu_provision.sandbox"), record.getMessage()) for record in caplog.records}
    assert said <= {message for _, message in logged}
    assert all(is_sandbox for is_sandbox, _ in logged), logged


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize(("user", "place", "reason"), BAD_USERS.values(), ids=BAD_USERS.keys())
def test_a_user_that_cannot_be_used_is_one_finding(
    user: dict[str, Any], place: str, reason: str, tmp_path: Path
) -> None:
    """Before the first request, with file and entry."""
    (tmp_path / "empty").touch()
    (tmp_path / "cert.pem").write_bytes(CERTIFICATE)
    path = kubeconfig(tmp_path, URL, user=user)
    with pytest.raises(UsageError) as caught:
        connect(str(path))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("GP300", f"{path}: users[odd].user.{place}")
    assert reason in finding.what
    assert SECRET not in str(finding)


BAD_CLUSTERS: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "no scheme": ({"server": "10.0.0.1:6443"}, "server", "begins with https://"),
    "no server": ({"server": None}, "server", "begins with https://"),
    "no URL": ({"server": "https://[1"}, "server", "not a URL"),
    "a word for a flag": ({"insecure-skip-tls-verify": "yes, please"}, "insecure-skip-tls-verify", "true or false"),
    "no authority": ({"certificate-authority": "none"}, "certificate-authority", "none cannot be read"),
    "wrong base64": ({"certificate-authority-data": "x!"}, "certificate-authority-data", "not base64"),
    "wrong PEM": ({"certificate-authority-data": _encoded("x")}, "certificate-authority", "no certificate in PEM"),
    "an odd proxy": ({"proxy-url": "ftp://127.0.0.1"}, "proxy-url", "begins with http://"),
    "a SOCKS proxy": ({"proxy-url": "socks5://127.0.0.1:1"}, "proxy-url", "pip install PySocks"),
}


@pytest.mark.parametrize(("cluster", "place", "reason"), BAD_CLUSTERS.values(), ids=BAD_CLUSTERS.keys())
def test_a_cluster_that_cannot_be_used_is_one_finding(
    cluster: dict[str, Any], place: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "find_spec", lambda _: None)
    path = kubeconfig(tmp_path, **{"url": URL, **cluster})
    with pytest.raises(UsageError) as caught:
        connect(str(path))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("GP300", f"{path}: clusters[odd].cluster.{place}")
    assert reason in finding.what


BAD_TEXTS = {
    "an empty file": ("", ""),
    "a list": ("- a\n- b\n", ""),
    "a tag": (f"users: !{SECRET} x", ":1"),
    "an alias": (f"\nusers: *{SECRET}", ":2"),
    "a number": (f"users: !!int {SECRET}", ""),
    "a time": (f"users: !!timestamp {SECRET}", ""),
    "brackets": ("[" * 1000 + "]" * 1000, ""),
    "a text": (SECRET, ""),
}


@pytest.mark.parametrize(("text", "line"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_a_file_that_is_no_kubeconfig_is_not_quoted(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        connect(str(path))
    assert caught.value.findings[0].where == f"{path}{line}"
    assert SECRET not in str(caught.value)


def test_missing_file_or_context_is_one_finding(tmp_path: Path) -> None:
    for path, context in ((tmp_path / "none", ""), (tmp_path, ""), (kubeconfig(tmp_path, URL), "production")):
        with pytest.raises(UsageError) as caught:
            connect(str(path), context)
        (finding,) = caught.value.findings
        assert finding.code == "GP300"
        assert str(path) in finding.where
        assert context in finding.where
        assert finding.fix


def test_a_context_of_an_unknown_user_or_cluster_names_it(tmp_path: Path) -> None:
    for kind in ("user", "cluster"):
        path = kubeconfig(tmp_path, URL)
        path.write_text(path.read_text().replace(f"{kind}: odd", f"{kind}: gone"))
        with pytest.raises(UsageError, match=rf"contexts\[odd\]\.context\.{kind}.*there is no such {kind}"):
            connect(str(path))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two default kubeconfigs and one that does not exist."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
        path = kubeconfig(tmp_path / name, f"https://{name}:1", user={"tokenFile": "token"})
        path.write_text(path.read_text().replace("odd", f"of-{name}"))
        made.append(path)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(tmp_path / "none"), *map(str, made)]))
    return made


@pytest.mark.usefixtures("files")
def test_several_files_are_one_kubeconfig() -> None:
    """The first current context counts, as in kubectl; paths begin at the file that names them."""
    assert api_client()[1:] == ("of-one", "of-one")
    found = api_client("", "of-two")[0].configuration
    assert found.host == "https://two:1"
    assert found.api_key["BearerToken"] == "Bearer two"


def test_an_entry_of_the_first_file_hides_that_of_a_later_one(files: list[Path]) -> None:
    files[1].write_text(files[1].read_text().replace("of-two", "of-one"))
    assert api_client()[0].configuration.host == "https://one:1"


def test_a_default_kubeconfig_that_is_damaged_is_no_missing_one(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod, it would mean another cluster."""
    (tmp_path / "account").touch()
    monkeypatch.setattr(reader, "_TOKEN", tmp_path / "account")
    files[0].write_text("{")
    with pytest.raises(UsageError, match="not YAML"):
        connect()


def test_a_pod_without_a_kubeconfig_uses_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is one finding, too."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="there is no such file"):
        connect()
    (tmp_path / "token").write_text("x")
    monkeypatch.setattr(reader, "_TOKEN", tmp_path / "token")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="service account"):
        connect()


def test_a_name_and_a_password_are_sent(tmp_path: Path) -> None:
    settings = api_client(str(kubeconfig(tmp_path, URL, user={"username": "ada", "password": "é"})))[0].configuration
    assert settings.api_key["BearerToken"] == f"Basic {_encoded('ada:é')}"


def test_an_oidc_token_of_kubectl_is_used_until_its_end(tmp_path: Path) -> None:
    token = _token(exp=4e9)
    path = kubeconfig(tmp_path, URL, user={"auth-provider": {"name": "oidc", "config": {"id-token": token}}})
    assert api_client(str(path))[0].configuration.api_key["BearerToken"] == f"Bearer {token}"


def test_an_unverified_server_is_noticed_without_other_warnings(server: Running, tmp_path: Path) -> None:
    """Python turns a warning of urllib3 into an error here."""
    user = {"token": server.server.tokens.token()}
    unverified = connect(str(kubeconfig(tmp_path, server.server.url, user=user, **{"insecure-skip-tls-verify": True})))
    assert observe_facts(unverified, inventory()).unverified == server.server.url
    assert observe_facts(connect(str(server.server.kubeconfig)), inventory()).unverified == ""


_PROVIDER = {"name": "oidc", "config": {"id-token": _token(exp=4e9)}}
_PLUGIN = {
    "args": ["--region"],
    "env": [{"name": "KEY", "value": SECRET}],
    "installHint": "x",
    "interactiveMode": "Never",
}
_AUTHORITY = {
    "certificate-authority-data": _encoded(CERTIFICATE),
    "tls-server-name": "x",
    "proxy-url": "http://127.0.0.1:1",
}
_EXTENSIONS = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
USERS: list[dict[str, Any]] = [
    {"token": SECRET},
    {"username": "ada", "password": SECRET},
    {"client-certificate-data": _encoded(CERTIFICATE), "client-key-data": _encoded(KEY)},
    {"auth-provider": _PROVIDER},
    {"tokenFile": "/dev/null", "client-certificate": "/dev/null", "client-key": "/dev/null"},
    _exec(**_PLUGIN, provideClusterInfo=True),
    {},
]


def _damaged(dice: Random) -> tuple[str, str]:
    """Return a kubeconfig, and what its plugin prints."""
    whole = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": URL, **_AUTHORITY, "extensions": _EXTENSIONS}}],
        "users": [{"name": "u", "user": dice.choice(USERS)}],
    }
    status = {"token": SECRET, "expirationTimestamp": None}
    answer = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    damaged = fuzzing.mutated_text(dice, yaml.safe_dump(whole)), json.dumps(fuzzing.mutated_value(dice, whole))
    return dice.choice(damaged), json.dumps(fuzzing.mutated_value(dice, answer))


@pytest.mark.usefixtures("unheard")
def test_a_damaged_kubeconfig_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins are not run here."""
    path = tmp_path / "kubeconfig"
    met: Counter[bool] = Counter()

    def read(given: tuple[str, str]) -> None:
        text, answer = given
        monkeypatch.setattr(
            plugins.CredentialPlugin, "_run", lambda *_, **__: (0, answer.encode(errors="replace"), b"")
        )
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        is_refused = False
        try:
            api_client(str(path))
        except ProvisionError:
            is_refused = True
        met[is_refused] += 1

    fuzzing.hold(_damaged, read)
    assert min(met[True], met[False]) > fuzzing.COUNT / 20


def test_a_cluster_is_where_the_inventory_says() -> None:
    stack = replace(inventory(), cluster=ClusterConfig(kubeconfig="/k", context="prod"))
    assert resolve_context(stack) == ("/k", "prod")


def test_a_sandbox_is_started_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def up(fleet: str) -> Sandbox:
        return Sandbox(
            name=fleet, directory=Path("/s"), kubeconfig=Path("/s/kubeconfig"), context="sandbox", url="", pid=1
        )

    monkeypatch.setattr(lifecycle, "up", up)
    assert resolve_context(inventory()) == ("/s/kubeconfig", "sandbox")
