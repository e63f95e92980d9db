"""The running sandbox: TLS, tokens, restarts, first objects, request log and maintenance."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpu_provision.sandbox.apiserver import server as server_module
from gpu_provision.sandbox.apiserver.auth import ADMIN, Tokens
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest, RequestLog, requests, writes
from tests.sandbox.apiserver.conftest import Cluster, Running

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def test_only_the_private_authority_vouches_for_the_server(server: Running) -> None:
    connection = server.connection()
    connection._context = ssl.create_default_context()  # type: ignore[attr-defined]
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/version")


def test_the_kubeconfig_is_for_its_owner_only(server: Running) -> None:
    path = server.server.kubeconfig
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "sandbox"
    assert config["clusters"][0]["cluster"]["server"] == f"https://127.0.0.1:{server.server.port}"


def test_tokens_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    """An invalid file keeps the previous tokens."""
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    header = f"Bearer {tokens.token()}"
    assert (tokens.authenticate(header), stat.S_IMODE(path.stat().st_mode)) == (ADMIN, 0o600)
    path.write_text("{")
    os.utime(path, ns=(1, 1))
    assert tokens.authenticate(header) == ADMIN
    path.write_text('{"other": "bob"}')
    os.utime(path, ns=(2, 2))
    assert tokens.authenticate("Bearer other") == "bob"
    with pytest.raises(StatusError, match="401 Unauthorized"):
        tokens.authenticate(header)


def test_a_restart_keeps_port_token_and_objects(start: Callable[..., Running]) -> None:
    first = start()
    port, text = first.server.port, first.server.kubeconfig.read_text()
    assert first.ask("POST", CONFIGMAPS, {"metadata": {"name": "kept"}, "data": {"a": "b"}}).code == 201
    first.stop()
    second = start()
    assert (second.server.port, second.server.kubeconfig.read_text()) == (port, text)
    assert second.ask("GET", f"{CONFIGMAPS}/kept").body["data"] == {"a": "b"}


def test_open_watches_do_not_hold_up_the_end(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for other requests; a watch would last for half an hour."""
    monkeypatch.setattr(server_module, "_CLOSING_SECONDS", 3600)
    running = start()
    connection = running.connection()
    headers = {"Authorization": f"Bearer {running.server.tokens.token()}"}
    connection.request("GET", f"{CONFIGMAPS}?watch=1", headers=headers)
    assert connection.getresponse().status == 200
    running.stop()
    connection.close()


def test_the_request_log_tells_writes_from_reads(server: Running) -> None:
    """Dry runs and access reviews are no writes; the log has no secrets."""
    path = server.server.request_log
    before = len(writes(path))
    server.ask("POST", f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "dry"}})
    server.ask("GET", CONFIGMAPS, agent="reader/1.0")
    server.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert len(writes(path)) == before
    secret = {"metadata": {"name": "hidden"}, "stringData": {"key": "tr0ub4dor"}}
    server.ask("POST", "/api/v1/namespaces/default/secrets", secret)
    [write] = writes(path)[before:]
    assert (write.verb, write.path.endswith("/secrets"), write.code, write.user) == ("POST", True, 201, ADMIN)
    assert any(request.agent == "reader/1.0" and request.code == 200 for request in requests(path))
    assert writes(path, since="9999") == []
    assert not any(text in path.read_text() for text in ("tr0ub4dor", server.server.tokens.token()))


def test_a_line_that_is_still_written_waits_for_the_next_look(tmp_path: Path) -> None:
    """A reader may see a partial line."""
    path = tmp_path / "requests.log"
    log = RequestLog(path)
    entries = [
        LoggedRequest("2026-11-22", "GET", f"/api/v1/{kind}", "", "", "", code=200, dry_run=False)
        for kind in ("pods", "nodes")
    ]
    for entry in entries:
        log.add(entry)
    log.close()
    text = path.read_text()
    for length in range(len(text)):
        path.write_text(text[:length])
        assert list(requests(path)) == entries[: text[:length].count("\n")]


def test_every_cluster_has_its_first_objects(cluster: Cluster) -> None:
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        assert cluster.get(f"api/v1/namespaces/{name}")["status"]["phase"] == "Active"
        assert cluster.get(f"api/v1/namespaces/{name}/serviceaccounts/default")
        assert cluster.get(f"api/v1/namespaces/{name}/configmaps/kube-root-ca.crt")["data"]
    assert cluster.get("apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")["value"] == 2000001000
    assert cluster.get("api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"] == "10.96.0.1"


def test_the_oldest_events_make_room(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file does not grow without limit."""
    monkeypatch.setattr(server_module, "MAX_EVENTS", 10)
    monkeypatch.setattr(server_module, "DROPPED_AT_ONCE", 4)
    server_module.start_maintenance(cluster.registry)
    for number in range(11):
        cluster.create("api/v1/namespaces/default/events", f"e{number}", involvedObject={"kind": "Pod", "name": "x"})
    names = {item.object["metadata"]["name"] for item in cluster.store.select("/events")}
    assert names == {f"e{number}" for number in range(4, 11)}
