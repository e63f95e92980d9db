"""Credential plugins as kubeconfigs name them: scripts that fail, hang, print garbage, or ask a person."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.kube import credentials
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.credentials import CredentialPluginError
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import ExitCode, Finding
from tests.kube.conftest import kubeconfig
from tests.sandbox.apiserver.conftest import Running

VERSION = "client.authentication.k8s.io/v1"
SECRET = "hunter2hunter2"  # noqa: S105 - a marker that no message may show
NODES = Kind("v1", "Node")
Login = Callable[..., KubeClient]


@pytest.fixture
def login(server: Running, tmp_path: Path) -> Login:
    def connected(*lines: str, **entry: Any) -> KubeClient:
        plugin = tmp_path / "aws"
        plugin.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        plugin.chmod(0o700)
        given = {"apiVersion": VERSION, "command": str(plugin), **entry}
        authority = {"certificate-authority": str(server.server.authority)}
        return connect(str(kubeconfig(tmp_path, server.server.url, user={"exec": given}, **authority)))

    return connected


def _answer(**status: str) -> str:
    told = ", ".join(f'"{key}": "{value}"' for key, value in status.items())
    return f'printf "%s\\n" \'{{"apiVersion": "{VERSION}", "kind": "ExecCredential", "status": {{{told}}}}}\''


def _failure(act: Callable[[], object]) -> Finding:
    with pytest.raises(CredentialPluginError) as caught:
        act()
    (finding,) = caught.value.findings
    assert caught.value.exit_code is ExitCode.FAILED
    assert finding.code == "GP312"
    assert "users[odd].user.exec" in finding.where
    return finding


def test_a_token_without_an_end_is_used(login: Login, server: Running) -> None:
    assert login(_answer(token=server.server.tokens.token())).list(NODES).resource_version


def test_a_plugin_that_fails_is_the_error(
    login: Login, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With its exit code and the end of its stderr, but without its variables and arguments."""
    caplog.set_level(logging.DEBUG)
    complain = [f"echo line {number} >&2" for number in range(9)]
    complain += ["printf 'not logged in: \\033[2J %s\\n' $TOKEN >&2", "exit 7"]
    variables = [{"name": "TOKEN", "value": SECRET}, {"name": "NUMBER", "value": "7"}]
    finding = _failure(lambda: login(*complain, env=variables, args=["--key", SECRET]))
    assert finding.what == "the credential plugin aws failed with exit code 7"
    assert finding.evidence == "line 5\nline 6\nline 7\nline 8\nnot logged in: \\x1b[2J ***"
    told = [str(finding), *capfd.readouterr(), *(record.getMessage() for record in caplog.records)]
    assert not any(SECRET in text for text in told)


PRINTED = {
    "nothing": ("true", "did not print JSON"),
    "garbage": ("echo '<html>'", "did not print JSON"),
    "another document": ("echo '[1]'", "did not print an ExecCredential"),
    "another version": (_answer(token=SECRET).replace("/v1", "/v2"), f"did not answer in {VERSION}"),
    "no token": (_answer(), "neither a token nor a client certificate"),
    "a certificate without a key": (_answer(clientCertificateData="x"), "neither a token nor"),
    "a certificate that is none": (_answer(clientCertificateData="x", clientKeyData=SECRET), "cannot be used"),
    "a token of two lines": (_answer(token=f"{SECRET}\\nx"), "characters that no request may hold"),
    "an end that is no time": (_answer(token=SECRET, expirationTimestamp="soon"), "is no time"),
}


@pytest.mark.parametrize(("line", "what"), PRINTED.values(), ids=PRINTED.keys())
def test_what_is_no_credential_is_the_error(login: Login, line: str, what: str) -> None:
    """What it printed is not quoted: it may hold the token."""
    finding = _failure(lambda: login(line, "echo see here >&2"))
    assert what in finding.what
    assert SECRET not in str(finding)


def test_a_plugin_that_hangs_is_ended_with_its_children(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_SECONDS", 0.5)
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    finding = _failure(lambda: login(f"exec 3>{held}", "echo no network >&2", "sleep 1000 & sleep 1000"))
    assert finding.what == "the credential plugin aws has not ended after 0.5 s"
    deadline = time.monotonic() + 60
    while not _is_released(reader):
        assert time.monotonic() < deadline, "a child of the plugin still runs"
    os.close(reader)


def _is_released(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def test_a_plugin_gets_the_terminal_and_shows_its_question(
    login: Login, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the page of a device login; what the command waits for is said first."""
    monkeypatch.setattr(credentials, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(credentials, "_INTERACTIVE_SECONDS", 30)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    entered = tmp_path / "entered"
    os.mkfifo(entered)
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if "AB-12" in text:
            entered.write_text("yes\n")

    monkeypatch.setattr(credentials, "_tell", show)
    question = ["echo code AB-12 >&2", f"read answer < {entered}"]
    assert login(*question, _answer(token=server.server.tokens.token())).list(NODES).resource_version
    assert shown[0] == "Waiting for the credential plugin aws, at most 30 s.\n"
    assert "".join(shown[1:]) == "code AB-12\n"


@pytest.mark.parametrize("mode", ["Never", "IfAvailable"])
def test_a_plugin_without_a_terminal_reads_nothing(login: Login, server: Running, mode: str) -> None:
    tell = """case $KUBERNETES_EXEC_INFO in *'"interactive": false'*) ;; *) exit 3;; esac"""
    line = _answer(token=server.server.tokens.token())
    assert login("read answer && exit 4", tell, line, interactiveMode=mode).list(NODES).resource_version


def test_a_plugin_that_needs_a_terminal_does_not_run_without(login: Login, tmp_path: Path) -> None:
    finding = _failure(lambda: login(f"touch {tmp_path}/ran", interactiveMode="Always"))
    assert "there is no terminal" in finding.what
    assert not (tmp_path / "ran").exists()


def test_a_missing_plugin_says_how_to_install_it(login: Login) -> None:
    finding = _failure(lambda: login(command="no-such-plugin", installHint="pip install aws"))
    assert finding.what == "the credential plugin no-such-plugin cannot be started: No such file or directory"
    assert finding.fix == "pip install aws"
    assert "correct the command" in _failure(lambda: login(command="no-such-plugin")).fix


def test_a_variable_that_no_process_can_have_is_not_quoted(login: Login) -> None:
    finding = _failure(lambda: login("true", env=[{"name": "TOKEN", "value": f"{SECRET}\0"}]))
    assert SECRET not in str(finding)


def test_a_plugin_learns_of_the_cluster_what_it_is_to(login: Login, server: Running, tmp_path: Path) -> None:
    """The authority's certificate as data, as the plugin need not know where the kubeconfig lies."""
    keep = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info'
    login(keep, _answer(token=SECRET), provideClusterInfo=True)
    info = (tmp_path / "info").read_text()
    assert f'"server": "{server.server.url}"' in info
    assert '"certificate-authority-data": "LS0tLS1CRUdJTi' in info
    login(keep, _answer(token=SECRET))
    assert '"cluster"' not in (tmp_path / "info").read_text()
