"""How long a failed request is repeated, what a silence is, and how an answer is read that follows a lost one."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from gpu_provision.kube import retry, transport
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    LogUnavailableError,
    UnavailableError,
    UntrustedCertificateError,
    WebhookError,
)
from gpu_provision.kube.retry import Retries
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, ProvisionError, UnreachableError
from tests.kube.conftest import Canned, Lossy, config_map, kubeconfig
from tests.sandbox.apiserver.conftest import eventually

FINDING = Finding(code="GP301", what="no")


VERSION = (200, {}, b'{"gitVersion": "v1.34.1"}')


Answering = Callable[..., KubeClient]


def unavailable(status: int = 503, retry_after: float = 0.0) -> UnavailableError:
    error = UnavailableError(FINDING)
    error.status, error.retry_after = status, retry_after
    return error


def tries(failure: ProvisionError, seconds: float, *, took: float = 0.0) -> list[float]:
    retries, began = Retries(seconds), 0.0
    retries._began = began
    now, found = took, list[float]()
    while (delay := retries.delay(failure, now)) is not None:
        found.append(now + delay)
        now += delay + took
    return found


def test_pauses_grow_to_a_limit_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: asked.append(low) or high)
    assert tries(unavailable(), 60.0) == pytest.approx([0.5, 1.5, 3.5, 7.5, 15.5, 23.5, 31.5, 39.5, 47.5, 55.5, 60.0])
    assert set(asked) == {0.0}, "full jitter"


@pytest.mark.parametrize(("asked", "first"), [(7.0, 7.0), (600.0, 60.0)])
def test_the_server_sets_the_pause_within_the_budget(asked: float, first: float) -> None:
    assert tries(unavailable(retry_after=asked), 60.0)[0] == pytest.approx(first)


@pytest.mark.parametrize(
    ("failure", "seconds", "count"),
    [(UntrustedCertificateError(FINDING), 60.0, 0), (LogUnavailableError(FINDING), 60.0, 1), (unavailable(), 0.0, 0)],
    ids=["certificate", "log", "no time"],
)
def test_number_of_further_tries(failure: ProvisionError, seconds: float, count: int) -> None:
    assert len(tries(failure, seconds)) == count


def test_a_webhook_that_always_fails_is_named_within_seconds() -> None:
    assert tries(WebhookError(FINDING), 60.0)[-1] <= retry._WEBHOOK_SECONDS


def test_a_handshake_takes_from_the_budget() -> None:
    """An address where packets vanish takes five seconds for the first try, and there is no second."""
    assert not tries(UnreachableError(FINDING), retry.FIRST_CONTACT_SECONDS, took=5.0)


@pytest.mark.parametrize("code", [410, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_repeated(answering: Answering, code: int) -> None:
    assert answering((code, {}, b"{}"), VERSION).version() == "v1.34.1"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422])
def test_a_definite_answer_is_not_repeated(answering: Answering, code: int) -> None:
    cluster = answering((code, {}, b'{"message": "no"}'))
    with pytest.raises((ForbiddenError, InvalidError)):
        cluster.version()
    assert cluster.requests == 1


def test_a_wrong_address_fails_fast(tmp_path: Path) -> None:
    """The budget of a server that has never answered is another one."""
    cluster = connect(str(kubeconfig(tmp_path, "http://127.0.0.1:1")))
    assert cluster._retry_seconds(None) == retry.FIRST_CONTACT_SECONDS
    cluster.retry_seconds = 1.0
    assert cluster._retry_seconds(None) == 1.0
    assert connect(str(tmp_path / "kubeconfig"), retry_seconds=90.0)._retry_seconds(None) == 90.0


def test_any_answer_is_first_contact(answering: Answering) -> None:
    """A load balancer without a backend is what an address shows while its control plane restarts."""
    cluster = answering((502, {}, b"Bad Gateway"), VERSION)
    assert cluster.version() == "v1.34.1"
    assert cluster._retry_seconds(None) == retry.RETRY_SECONDS


def test_a_long_wait_is_reported_once(answering: Answering, caplog: pytest.LogCaptureFixture) -> None:
    cluster = answering((503, {"Retry-After": "50"}, b""))
    cluster.cancel_retries()
    with caplog.at_level(logging.DEBUG, "gpu_provision.kube"):
        for _ in range(2):
            with pytest.raises(UnavailableError):
                cluster.version()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["the API server answered 503; trying for another 60 s (GET version)"]
    assert len([each for each in caplog.records if each.levelno == logging.DEBUG]) == 2


def test_an_interrupt_ends_the_retries_of_other_threads(answering: Answering) -> None:
    cluster = answering((503, {"Retry-After": "50"}, b""))
    asked: list[Future[str]] = []

    def wait_in_vain() -> None:
        with RequestPool(cluster) as pool:
            asked.append(pool.submit(cluster.version))
            eventually(lambda: cluster.retries > 0, "the first failure")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_in_vain()
    assert isinstance(asked[0].exception(), UnavailableError)
    assert cluster.requests == 1, "the last try at the end of the time was not awaited"


# Writes whose answer is lost.
def made(cluster: KubeClient, name: str, **parts: Any) -> Manifest:
    manifest = config_map(name, **parts)
    return {**manifest, **cluster.create(manifest)}


Write = Callable[[KubeClient, Manifest], Manifest]


def _version(live: Manifest) -> dict[str, str]:
    return {"resourceVersion": live["metadata"]["resourceVersion"]}


def _apply(cluster: KubeClient, live: Manifest) -> Manifest:
    manifest = config_map(live["metadata"]["name"], data={"a": "2"})
    manifest["metadata"] |= _version(live)
    return cluster.apply(manifest, take_back=True).object


WRITES: dict[str, Write] = {
    "create": lambda cluster, live: cluster.create(config_map(f"{live['metadata']['name']}-2", data={"a": "2"})),
    "replace": lambda cluster, live: cluster.replace({**live, "data": {"a": "2"}}),
    "merge": lambda cluster, live: cluster.merge_patch(
        ref_of(live), {"metadata": _version(live), "data": {"a": "2", "b": None}}
    ),
    "apply": _apply,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_own_write_with_lost_answer_is_not_another_writers(
    cluster: KubeClient, lossy: Lossy, request: pytest.FixtureRequest, write: Write
) -> None:
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    live = made(cluster, name, data={"a": "1", "b": "1"} if "merge" in name else {"a": "1"})
    assert write(lossy(), live)["data"] == {"a": "2"}


def test_an_object_of_another_writer_is_reported(cluster: KubeClient, lossy: Lossy) -> None:
    made(cluster, "theirs-1", data={"a": "1"})
    with pytest.raises(AlreadyExistsError):
        made(lossy(), "theirs-1", data={"a": "2"})


def test_replace_that_another_writer_overwrote_is_a_conflict(cluster: KubeClient, lossy: Lossy) -> None:
    live = made(cluster, "overwritten", data={"a": "1"})
    other = KubeClient(cluster._client, name="other", server=cluster.server)
    with pytest.raises(ConflictError):
        lossy(lambda: other.merge_patch(ref_of(live), {"data": {"a": "3"}})).replace({**live, "data": {"a": "2"}})


@pytest.mark.parametrize("is_created_again", [False, True])
def test_an_own_delete_is_done(cluster: KubeClient, lossy: Lossy, *, is_created_again: bool) -> None:
    live = made(cluster, f"deleted-{is_created_again}".lower())
    other = KubeClient(cluster._client, name="other", server=cluster.server)
    ref, name = ref_of(live), live["metadata"]["name"]
    lossy(lambda: made(other, name) if is_created_again else None).delete(ref, uid=live["metadata"]["uid"])
    assert (cluster.get(ref) is not None) is is_created_again


class MovingServer:
    """One object whose version moves on before each apply, as a rollout moves it; it remembers what was applied."""

    def __init__(self, *, moves: int, edits: int = 0) -> None:
        self.version, self.generation, self.moves, self.edits = 10, 2, moves, edits
        self.applied: list[str] = []

    def request(self, verb: str, _path: str, *, body: Any = None, **_: Any) -> SimpleNamespace:
        answer = {"metadata": {"name": "d", "resourceVersion": str(self.version), "generation": self.generation}}
        if verb != "get":
            if self.moves:
                self.moves, self.version = self.moves - 1, self.version + 1
                self.generation += self.edits
            answer = body
            if body["metadata"]["resourceVersion"] != str(self.version):
                error = ApiException(status=409, reason="Conflict")
                error.body = json.dumps({"reason": "Conflict", "message": "the object has been modified"})
                raise error
            self.applied.append(body["metadata"]["resourceVersion"])
        return SimpleNamespace(status=200, headers={}, data=json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("moves", "edits", "looked_at", "applied"),
    [
        (3, 0, {"generation": 2}, ["13"]),
        (1, 1, {"generation": 2}, []),
        (1, 0, {}, []),
        (1000, 0, {"generation": 2}, []),
    ],
    ids=["a status that moves on", "another edit in between", "no generation", "a status that never rests"],
)
def test_a_status_that_moves_on_is_no_obstacle(
    moves: int, edits: int, looked_at: dict[str, int], applied: list[str]
) -> None:
    """In a rollout, it moves on several times a second; any other edit is not forced away."""
    server, metadata = MovingServer(moves=moves, edits=edits), {"name": "d", "namespace": "n", "resourceVersion": "10"}
    manifest = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {**metadata, **looked_at}}
    with contextlib.nullcontext() if applied else pytest.raises(ConflictError):
        KubeClient(server, name="c", server="s").apply(manifest, take_back=True)
    assert server.applied == applied


AWAY: Canned = (502, {}, b"Bad Gateway")


_STATUS = {"kind": "Status", "reason": "Forbidden", "message": 'User "me" cannot get path "/version"', "code": 403}


FORBIDDEN: Canned = (403, {}, json.dumps(_STATUS).encode())


def test_a_refusal_right_after_a_silence_is_part_of_it(answering: Answering) -> None:
    """An API server that starts has not read its roles yet, and refuses everybody but administrators."""
    cluster = answering(AWAY, FORBIDDEN, FORBIDDEN, VERSION)
    cluster.retry_seconds = 600.0
    assert cluster.version() == "v1.34.1"


def test_a_lasting_refusal_after_a_silence_is_raised(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SETTLING_SECONDS", 0.6)
    cluster = answering(AWAY, FORBIDDEN)
    cluster.retry_seconds = 600.0
    with pytest.raises(ForbiddenError, match="GP303"):
        cluster.version()


def test_silence_lasts_from_its_first_failure_to_the_next_answer(answering: Answering) -> None:
    cluster = answering(AWAY, AWAY, (404, {}, b"{}"))
    cluster.retry_seconds = 0.0
    assert cluster.health.silent_seconds == 0
    for _ in range(2):
        with pytest.raises(UnreachableError):
            cluster.version()
        assert cluster.health.silent_seconds > 0
    assert cluster.served_resources("none") == frozenset()
    assert cluster.health.silent_seconds == 0, "a refusal is an answer, too"
