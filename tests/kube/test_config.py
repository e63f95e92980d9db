"""Kubeconfigs: damaged entries are one finding with file and entry, several files are one, and nothing is quoted."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from random import Random
from string import Template
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
from tests import data_file, fuzzing
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


DATA = data_file.document(
    Template(Path(__file__).with_suffix(".yaml").read_text()).substitute(
        CERTIFICATE=_encoded(CERTIFICATE),
        KEY=_encoded(KEY),
        OTHER_KEY=_encoded(OTHER_KEY),
        LOCKED_KEY=_encoded(LOCKED_KEY),
        SECRET_64=_encoded(SECRET),
        SECRET=SECRET,
        VERSION=VERSION,
        URL=URL,
    )
)


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
@pytest.mark.parametrize("case", DATA["entries"], ids=itemgetter("name"))
def test_an_entry_that_cannot_be_used_is_one_finding(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first request, with file and entry."""
    monkeypatch.setattr(reader, "find_spec", lambda _: None)
    (tmp_path / "empty").touch()
    (tmp_path / "cert.pem").write_bytes(CERTIFICATE)
    path = kubeconfig(tmp_path, **{"url": URL, "user": case.get("user"), **case.get("cluster", {})})
    with pytest.raises(UsageError) as caught:
        connect(str(path))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("GP300", f"{path}: {case['where']}")
    assert case["what"] in finding.what
    assert SECRET not in str(finding)


@pytest.mark.parametrize("case", DATA["texts"], ids=itemgetter("name"))
def test_a_file_that_is_no_kubeconfig_is_not_quoted(case: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("[" * 1000 + "]" * 1000 if case["text"] is None else case["text"])
    with pytest.raises(UsageError) as caught:
        connect(str(path))
    assert caught.value.findings[0].where == f"{path}{case['line']}"
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


def test_several_files_are_one_kubeconfig(files: list[Path]) -> None:
    """The first current context and entry count, as in kubectl; paths begin at the file that names them."""
    assert api_client()[1:] == ("of-one", "of-one")
    found = api_client("", "of-two")[0].configuration
    assert found.host == "https://two:1"
    assert found.api_key["BearerToken"] == "Bearer two"
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


def test_an_oidc_token_of_kubectl_is_used(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, URL, user={"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}})
    assert api_client(str(path))[0].configuration.api_key["BearerToken"] == "Bearer x"


def test_an_unverified_server_is_noticed_without_other_warnings(server: Running, tmp_path: Path) -> None:
    """Python turns a warning of urllib3 into an error here."""
    user = {"token": server.server.tokens.token()}
    unverified = connect(str(kubeconfig(tmp_path, server.server.url, user=user, **{"insecure-skip-tls-verify": True})))
    assert observe_facts(unverified, inventory()).unverified == server.server.url
    assert observe_facts(connect(str(server.server.kubeconfig)), inventory()).unverified == ""


def _damaged(dice: Random) -> tuple[str, str]:
    whole = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": DATA["cluster"]}],
        "users": [{"name": "u", "user": dice.choice(DATA["users"])}],
    }
    status = {"token": SECRET, "expirationTimestamp": None}
    answer = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    damaged = fuzzing.mutate_text(dice, yaml.safe_dump(whole)), json.dumps(fuzzing.mutate_value(dice, whole))
    return dice.choice(damaged), json.dumps(fuzzing.mutate_value(dice, answer))


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

    fuzzing.check_reader(_damaged, read)
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
