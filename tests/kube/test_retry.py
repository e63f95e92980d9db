"""How long a failed request is repeated, and how an answer is read that follows a lost one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.kube import retry
from gpu_provision.kube.client import Cluster, connect
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
from gpu_provision.model.findings import Finding, ProvisionError, Refused, Rejected, Unreachable
from tests.kube.conftest import (
    Lossy,
    config_map,
    kubeconfig,
)
from tests.sandbox.apiserver.conftest import eventually

FINDING = Finding(code="GP301", what="no")
VERSION = (200, {}, b'{"gitVersion": "v1.34.1"}')
Answering = Callable[..., Cluster]


def unavailable(status: int = 503, retry_after: float = 0.0) -> UnavailableError:
    """What an answer of this status becomes."""
    error = UnavailableError(FINDING)
    error.status, error.retry_after = status, retry_after
    return error


def tries(failure: ProvisionError, seconds: float, *, took: float = 0.0) -> list[float]:
    """Return when each try after the first begins, if all fail so."""
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
    [
        (UntrustedCertificateError(FINDING), 60.0, 0),
        (LogUnavailableError(FINDING), 60.0, 1),
        (unavailable(), 0.0, 0),
    ],
    ids=["certificate", "log", "no time"],
)
def test_number_of_further_tries(failure: ProvisionError, seconds: float, count: int) -> None:
    assert len(tries(failure, seconds)) == count


def test_a_webhook_that_always_fails_is_named_within_seconds() -> None:
    assert tries(WebhookError(FINDING), 60.0)[-1] <= retry._WEBHOOK_SECONDS


def test_a_handshake_takes_from_the_budget() -> None:
    """An address where packets vanish takes five seconds for the first try, and there is no second."""
    assert not tries(Unreachable(FINDING), retry.FIRST_CONTACT_SECONDS, took=5.0)


@pytest.mark.parametrize("code", [410, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_repeated(answering: Answering, code: int) -> None:
    assert answering((code, {}, b"{}"), VERSION).version() == "v1.34.1"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422])
def test_a_definite_answer_is_not_repeated(answering: Answering, code: int) -> None:
    cluster = answering((code, {}, b'{"message": "no"}'))
    with pytest.raises((Refused, Rejected)):
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


def made(cluster: Cluster, name: str, **parts: Any) -> Manifest:
    """Create a ConfigMap; return it as the server has it."""
    manifest = config_map(name, **parts)
    return {**manifest, **cluster.create(manifest)}


Write = Callable[[Cluster, Manifest], Manifest]


def on_version(live: Manifest) -> Manifest:
    return {**config_map(live["metadata"]["name"]), "metadata": {**_named(live), **_version(live)}, "data": {"a": "2"}}


def _named(live: Manifest) -> dict[str, str]:
    return {key: live["metadata"][key] for key in ("name", "namespace")}


def _version(live: Manifest) -> dict[str, str]:
    return {"resourceVersion": live["metadata"]["resourceVersion"]}


WRITES: dict[str, Write] = {
    "create": lambda cluster, live: cluster.create(config_map(f"{live['metadata']['name']}-2", data={"a": "2"})),
    "replace": lambda cluster, live: cluster.replace({**live, "data": {"a": "2"}}),
    "merge": lambda cluster, live: cluster.merge(
        ref_of(live), {"metadata": _version(live), "data": {"a": "2", "b": None}}
    ),
    "apply": lambda cluster, live: cluster.apply(on_version(live), take_back=True).object,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_own_write_with_lost_answer_is_not_another_writers(
    cluster: Cluster, lossy: Lossy, request: pytest.FixtureRequest, write: Write
) -> None:
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    live = made(cluster, name, data={"a": "1", "b": "1"} if "merge" in name else {"a": "1"})
    assert write(lossy(), live)["data"] == {"a": "2"}


def test_object_of_another_writer_is_told(cluster: Cluster, lossy: Lossy) -> None:
    made(cluster, "theirs-1", data={"a": "1"})
    with pytest.raises(AlreadyExistsError):
        made(lossy(), "theirs-1", data={"a": "2"})


def test_replace_that_another_writer_overwrote_is_a_conflict(cluster: Cluster, lossy: Lossy) -> None:
    live = made(cluster, "overwritten", data={"a": "1"})
    other = Cluster(cluster._client, name="other", server=cluster.server)
    with pytest.raises(ConflictError):
        lossy(lambda: other.merge(ref_of(live), {"data": {"a": "3"}})).replace({**live, "data": {"a": "2"}})


@pytest.mark.parametrize("is_created_again", [False, True])
def test_an_own_delete_is_done(cluster: Cluster, lossy: Lossy, *, is_created_again: bool) -> None:
    live = made(cluster, f"deleted-{is_created_again}".lower())
    other = Cluster(cluster._client, name="other", server=cluster.server)
    ref, name = ref_of(live), live["metadata"]["name"]
    lossy(lambda: made(other, name) if is_created_again else None).delete(ref, uid=live["metadata"]["uid"])
    assert (cluster.get(ref) is not None) is is_created_again
