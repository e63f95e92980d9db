"""Credentials that end in a run or are refused; plugins that fail, hang, print garbage, or ask a person."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from gpu_provision import ExitCode, Finding, ForbiddenError, ProvisionError
from gpu_provision.kube import credentials
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.credentials import Credential, CredentialPluginError, Login, renewal_of
from gpu_provision.model.cluster import Kind
from tests import data_file
from tests.kube.conftest import QuietHandler, kubeconfig, serving
from tests.sandbox.apiserver.conftest import Running

VERSION = "client.authentication.k8s.io/v1"
_NEVER = math.inf


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e9
        monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: self.now, monotonic=time.monotonic))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Issuer:
    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.asked, self.fails = clock, seconds, 0, False

    def __call__(self) -> Credential:
        self.asked += 1
        if self.fails:
            raise ProvisionError(Finding(code="GP312", what="fails"))
        expires = self.clock.now + self.seconds
        renewal = renewal_of(expires) if self.seconds < math.inf else _NEVER
        return Credential(authorization=str(self.asked), expires=expires, renewal=renewal)


@pytest.mark.parametrize(("seconds", "renewed"), [(900, 720), (3600, 3300), (100, 80)])
def test_a_credential_is_renewed_before_its_end(clock: Clock, seconds: float, renewed: float) -> None:
    """A fifth of its life before, five minutes at most; EKS issues tokens of 14 minutes."""
    login = Login(Issuer(clock, seconds))
    clock.now += renewed - 1
    assert login.credential().authorization == "1"
    clock.now += 1
    assert login.credential().authorization == "2"


def test_a_renewal_that_fails_is_tried_again_until_the_end(clock: Clock) -> None:
    """A network that is away for a minute ends no run."""
    issuer = Issuer(clock, 900)
    login = Login(issuer)
    issuer.fails, clock.now = True, clock.now + 800
    assert login.credential() == login.credential()
    assert issuer.asked == 2, "each request would wait for the plugin's failure"
    clock.now += 10
    login.credential()
    assert issuer.asked == 3
    clock.now += 100
    with pytest.raises(ProvisionError, match="fails"):
        login.credential()
    issuer.fails, clock.now = False, clock.now + 10
    assert login.credential().authorization == "5"


def test_an_ended_token_does_not_run_the_plugin_at_every_request(clock: Clock) -> None:
    """As a wrong clock makes of any token."""
    issuer = Issuer(clock, -100)
    login = Login(issuer)
    for _ in range(30):
        login.credential()
        clock.now += 1
    assert issuer.asked <= 4


def test_a_refused_credential_is_replaced_once_for_all_threads(clock: Clock) -> None:
    issuer = Issuer(clock, math.inf)
    login = Login(issuer)
    refused = login.credential()
    clock.now += 60
    threads = [threading.Thread(target=login.replace_refused, args=(refused,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert issuer.asked == 2
    assert login.replace_refused(refused).authorization == "2"


def test_a_credential_shows_nothing_secret() -> None:
    assert "SECRET" not in repr(Credential(authorization="SECRET", certificate="SECRET", key="SECRET"))


Serve = Callable[[Callable[[BaseHTTPRequestHandler], int]], str]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def serve(authority: trustme.CA) -> Iterator[Serve]:
    """Start an API server whose version is what the client shows; a judge decides on the status of each answer."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_OPTIONAL
    with contextlib.ExitStack() as started:

        def start(judge: Callable[[BaseHTTPRequestHandler], int]) -> str:
            class Handler(QuietHandler):
                def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
                    peer = self.connection.getpeercert() or {}
                    names = [value for parts in peer.get("subject", ()) for key, value in parts if key == "commonName"]
                    shown = self.headers.get("Authorization", "".join(names))
                    self.say(judge(self), json.dumps({"gitVersion": shown}).encode())

            return f"https://127.0.0.1:{started.enter_context(serving(Handler, tls))}"

        yield start


@pytest.fixture
def client(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., KubeClient]:
    monkeypatch.setattr(credentials, "_PAUSE_SECONDS", 0)

    def connected(url: str, user: dict[str, Any]) -> KubeClient:
        authority.cert_pem.write_to_path(tmp_path / "ca.crt")
        return connect(str(kubeconfig(tmp_path, url, user=user, **{"certificate-authority": "ca.crt"})))

    return connected


def _plugin(folder: Path, *statuses: dict[str, str]) -> dict[str, Any]:
    for number, status in enumerate(statuses, start=1):
        document = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
        (folder / f"answer-{number}").write_text(json.dumps(document))
    script = folder / "plugin"
    script.write_text(f'#!/bin/sh\ncd {folder}\necho >> runs\nexec cat "answer-$(wc -l < runs)"\n')
    script.chmod(0o700)
    return {"exec": {"apiVersion": VERSION, "command": "./plugin"}}


Client = Callable[..., KubeClient]


def test_a_401_runs_the_plugin_and_asks_again(serve: Serve, client: Client, tmp_path: Path) -> None:
    """Tokens without an end are renewed so: a run of hours outlives them."""
    url = serve(lambda request: 401 if request.headers["Authorization"] == "Bearer old" else 200)
    cluster = client(url, _plugin(tmp_path, {"token": "old"}, {"token": "new"}))
    assert cluster.version() == "Bearer new"
    assert cluster.version() == "Bearer new"
    assert (tmp_path / "runs").read_text().count("\n") == 2


def test_a_plugin_that_fails_after_a_401_is_the_error(serve: Serve, client: Client, tmp_path: Path) -> None:
    cluster = client(serve(lambda _: 401), _plugin(tmp_path, {"token": "old"}))
    with pytest.raises(CredentialPluginError, match="failed with exit code 1"):
        cluster.version()


def test_a_repeated_401_is_reported(serve: Serve, client: Client, tmp_path: Path) -> None:
    cluster = client(serve(lambda _: 401), _plugin(tmp_path, *[{"token": f"t{number}"} for number in range(9)]))
    with pytest.raises(ForbiddenError, match="GP302"):
        cluster.version()
    assert (tmp_path / "runs").read_text().count("\n") == 2


def test_a_wrong_token_of_the_kubeconfig_is_sent_once(serve: Serve, client: Client) -> None:
    answers = iter([401])
    with pytest.raises(ForbiddenError, match="GP302"):
        client(serve(lambda _: next(answers)), {"token": "x"}).version()


def test_certificates_of_a_plugin_are_shown_and_replaced(
    serve: Serve, client: Client, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reach no disk."""
    made = [authority.issue_cert(common_name=name) for name in ("ada", "eve")]
    pems = [(cert.cert_chain_pems[0].bytes().decode(), cert.private_key_pem.bytes().decode()) for cert in made]
    statuses = [{"clientCertificateData": pem, "clientKeyData": key} for pem, key in pems]
    statuses[0]["expirationTimestamp"] = "2100-01-01T00:00:00Z"
    cluster = client(serve(lambda _: 200), _plugin(tmp_path, *statuses))
    assert cluster.version() == "ada"
    assert cluster.api.configuration.key_file.startswith("/proc/self/fd/")
    later = time.time() + 100 * 365 * 86400
    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
    assert cluster.version() == "eve"


def test_a_private_key_of_a_kubeconfig_reaches_no_disk(
    serve: Serve, client: Client, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run leaves in a folder of temporary files can be read later."""
    made = authority.issue_cert(common_name="ada")
    user = {
        "client-certificate-data": _encoded(made.cert_chain_pems[0]),
        "client-key-data": _encoded(made.private_key_pem),
    }
    url = serve(lambda _: 200)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert client(url, user).version() == "ada"


def _encoded(part: trustme.Blob) -> str:
    return base64.b64encode(part.bytes()).decode()


def test_a_token_file_is_read_again(
    serve: Serve, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every minute, as files of projected tokens change within the hour; one that is away for a moment is no error."""
    file = tmp_path / "token"
    file.write_text("first\n")
    cluster = client(serve(lambda _: 200), {"tokenFile": "token"})
    file.write_text("second\n")
    assert cluster.version() == "Bearer first"
    later = time.time() + 61
    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
    assert cluster.version() == "Bearer second"
    file.unlink()
    assert cluster.version() == "Bearer second"


SECRET = "hunter2hunter2"  # noqa: S105 - a marker that no message may show
NODES = Kind("v1", "Node")
LogIn = Callable[..., KubeClient]


@pytest.fixture
def login(server: Running, tmp_path: Path) -> LogIn:
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


def test_a_plugin_that_fails_is_the_error(
    login: LogIn, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
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


@pytest.mark.parametrize(
    "case", data_file.document(Path(__file__).with_suffix(".yaml").read_text()), ids=itemgetter("name")
)
def test_what_is_no_credential_is_the_error(login: LogIn, case: dict[str, str]) -> None:
    """What it printed is not quoted: it may hold the token."""
    finding = _failure(lambda: login(case["prints"], "echo see here >&2"))
    assert case["what"] in finding.what
    assert SECRET not in str(finding)


def test_a_plugin_that_hangs_is_ended_with_its_children(
    login: LogIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    login: LogIn, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the page of a device login; what the command waits for is said first."""
    monkeypatch.setattr(credentials, "_HINT_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(credentials, "_INTERACTIVE_SECONDS", 30)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    entered = tmp_path / "entered"
    os.mkfifo(entered)
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if "AB-12" in text:
            entered.write_text("yes\n")

    monkeypatch.setattr(credentials, "_write_stderr", show)
    question = ["echo code AB-12 >&2", f"read answer < {entered}"]
    assert login(*question, _answer(token=server.server.tokens.token())).list(NODES).resource_version
    assert shown[0] == "Waiting for the credential plugin aws, at most 30 s.\n"
    assert "".join(shown[1:]) == "code AB-12\n"


@pytest.mark.parametrize("mode", ["Never", "IfAvailable"])
def test_a_plugin_without_a_terminal_reads_nothing(login: LogIn, server: Running, mode: str) -> None:
    tell = """case $KUBERNETES_EXEC_INFO in *'"interactive": false'*) ;; *) exit 3;; esac"""
    line = _answer(token=server.server.tokens.token())
    assert login("read answer && exit 4", tell, line, interactiveMode=mode).list(NODES).resource_version


def test_a_plugin_that_needs_a_terminal_does_not_run_without(login: LogIn, tmp_path: Path) -> None:
    finding = _failure(lambda: login(f"touch {tmp_path}/ran", interactiveMode="Always"))
    assert "there is no terminal" in finding.what
    assert not (tmp_path / "ran").exists()


def test_a_missing_plugin_says_how_to_install_it(login: LogIn) -> None:
    finding = _failure(lambda: login(command="no-such-plugin", installHint="pip install aws"))
    assert finding.what == "the credential plugin no-such-plugin cannot be started: No such file or directory"
    assert finding.fix == "pip install aws"
    assert "correct the command" in _failure(lambda: login(command="no-such-plugin")).fix


def test_a_variable_that_no_process_can_have_is_not_quoted(login: LogIn) -> None:
    finding = _failure(lambda: login("true", env=[{"name": "TOKEN", "value": f"{SECRET}\0"}]))
    assert SECRET not in str(finding)


def test_a_plugin_learns_of_the_cluster_what_it_is_to(login: LogIn, server: Running, tmp_path: Path) -> None:
    """The authority's certificate as data, as the plugin need not know where the kubeconfig lies."""
    keep = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info'
    login(keep, _answer(token=SECRET), provideClusterInfo=True)
    info = (tmp_path / "info").read_text()
    assert f'"server": "{server.server.url}"' in info
    assert '"certificate-authority-data": "LS0tLS1CRUdJTi' in info
    login(keep, _answer(token=SECRET))
    assert '"cluster"' not in (tmp_path / "info").read_text()
