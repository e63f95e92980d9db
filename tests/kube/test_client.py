"""Every request of a cluster's client against a real server, and what its failures say."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpu_provision.kube import client, transport
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.trim import keep_all
from gpu_provision.model.cluster import Kind, Manifest, ref_of
from gpu_provision.model.findings import ForbiddenError, InvalidError, ProvisionError, UnreachableError
from tests.kube.conftest import config_map, kubeconfig
from tests.sandbox.apiserver.conftest import POD, Running

CONFIG_MAP = Kind("v1", "ConfigMap")


def test_an_unknown_field_is_rejected_by_name(cluster: KubeClient) -> None:
    with pytest.raises(InvalidError, match="dta"):
        cluster.apply(config_map("typo", dta={"a": "1"}))


def test_many_objects_are_asked_for_page_by_page(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of each is asked before the next page comes."""
    monkeypatch.setattr(client, "_PAGE", 2)
    for number in range(5):
        cluster.create(config_map(f"page-{number}", labels={"set": "pages"}))
    before = cluster.requests

    def name_of(kind: Kind, item: Manifest | msgspec.Raw) -> Manifest:
        return {"kept": keep_all(kind, item)["metadata"]["name"]}

    listing = cluster.list(CONFIG_MAP, label_selector="set=pages", keep=name_of)
    assert [item["kept"] for item in listing.items] == [f"page-{number}" for number in range(5)]
    assert cluster.requests == before + 3
    assert int(listing.resource_version) > 0


def test_expired_page_lists_all_at_once(answering: Callable[..., KubeClient]) -> None:
    """On a cluster that writes much, a list of many pages may take longer than the server remembers."""
    items = [config_map(name) for name in "abc"]
    first = {"metadata": {"resourceVersion": "1", "continue": "token"}, "items": items[:1]}
    whole = {"metadata": {"resourceVersion": "9"}, "items": items}
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    answers = ((200, first), (410, gone), (200, whole))
    found = answering(*((code, {}, json.dumps(body).encode()) for code, body in answers)).list(CONFIG_MAP)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b", "c"]
    assert found.resource_version == "9"


def test_the_last_lines_of_a_log_are_read(cluster: KubeClient, server: Running) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    metadata, spec = {"name": "p", "namespace": "default"}, {**POD, "nodeName": "n"}
    pod = cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    text = "one\ntwo\nTest PASSED\n"
    server.run(_append(server, pod["metadata"]["uid"], text))
    assert cluster.read_log(ref_of(pod), "main", lines=2) == ("two", "Test PASSED")
    with pytest.raises(NotFoundError):
        cluster.read_log(ref_of(pod)._replace(name="none"), "main")
    server.run(_append(server, pod["metadata"]["uid"], "x" * (3 << 20)))
    [line] = cluster.read_log(ref_of(pod), "main", lines=1)
    assert len(line) == client._LOG_BYTES


async def _append(server: Running, uid: str, text: str) -> None:
    server.server.api.append_log("default", "p", uid, "main", text)


def test_a_wrong_token_is_refused_and_never_told(server: Running, tmp_path: Path) -> None:
    token, wrong = server.server.tokens.token(), "a-secret-that-is-wrong"
    path = tmp_path / "wrong"
    path.write_text(server.server.kubeconfig.read_text().replace(token, wrong))
    with pytest.raises(ForbiddenError) as caught:
        connect(str(path)).list(CONFIG_MAP)
    assert caught.value.findings[0].code == "GP302"
    assert wrong not in str(caught.value)


def test_a_server_that_accepts_and_never_answers_is_given_up(mute: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(transport, "READ_SECONDS", 0.2)
    mute.retry_seconds = 0.0
    with pytest.raises(UnreachableError) as caught:
        mute.version()
    assert caught.value.findings[0].code == "GP301"
    assert "127.0.0.1" in caught.value.findings[0].where


Answering = Callable[..., KubeClient]


def _hang_up(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_a_tls_connection_that_ends_in_the_handshake_is_silence(tmp_path: Path) -> None:
    """As of a server that is just going down; it is worth another try."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_hang_up, args=(listener,), daemon=True).start()
        path = kubeconfig(tmp_path, f"https://127.0.0.1:{listener.getsockname()[1]}")
        cluster = connect(str(path), retry_seconds=0.0)
        with pytest.raises(UnreachableError, match="does not answer"):
            cluster.version()


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b'"text"', b"{}", b""])
def test_something_else_that_answers_is_no_api_server(answering: Answering, body: bytes) -> None:
    """A proxy's login page, for example."""
    with pytest.raises(UnreachableError, match="no Kubernetes API server"):
        answering((200, {}, body)).version()


def test_an_untrusted_certificate_is_named(server: Running, tmp_path: Path) -> None:
    other = Running(tmp_path / "other")
    try:
        path = kubeconfig(tmp_path, server.server.url, **{"certificate-authority": str(other.server.authority)})
        with pytest.raises(UnreachableError, match="certificate is not trusted"):
            connect(str(path)).version()
    finally:
        other.stop()


def test_no_failure_of_a_request_is_anything_but_ours(answering: Answering) -> None:
    """Whatever the status code, the reader gets a finding."""
    for code in (400, 402, 405, 406, 410, 413, 415, 418, 422, 500, 501, 504, 599):
        cluster = answering((code, {}, b"\xff\x00 no JSON"))
        cluster.retry_seconds = 0.0
        with pytest.raises(ProvisionError) as caught:
            cluster.apply(config_map("x"))
        assert caught.value.findings[0].code.startswith("GP30"), code


def test_the_events_of_one_object_are_its_own(cluster: KubeClient) -> None:
    """A namesake that was there before has left its own behind."""
    noted = {**config_map("noted"), "metadata": {"name": "noted", "namespace": "default", "uid": "1"}}
    about = {"kind": "ConfigMap", "name": "noted", "namespace": "default"}
    for uid in ("1", "2"):
        event = {"metadata": {"name": f"noted.{uid}", "namespace": "default"}, "reason": "Seen", "message": uid}
        cluster.create({**event, "apiVersion": "v1", "kind": "Event", "involvedObject": {**about, "uid": uid}})
    assert [event["message"] for event in cluster.events(noted)] == ["1"]
