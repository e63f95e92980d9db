"""An API server that does not answer, and one that has just come back and does not know its roles yet."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from gpu_provision.kube import informer, transport
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import Refused, Unreachable
from tests.kube.conftest import Canned, added
from tests.sandbox.apiserver.conftest import eventually

Answering = Callable[..., Cluster]
CONFIG_MAP = Kind("v1", "ConfigMap")

AWAY: Canned = (502, {}, b"Bad Gateway")
VERSION: Canned = (200, {}, b'{"gitVersion": "v1.34.1"}')
_STATUS = {"kind": "Status", "reason": "Forbidden", "message": 'User "me" cannot get path "/version"', "code": 403}
FORBIDDEN: Canned = (403, {}, json.dumps(_STATUS).encode())


def test_a_refusal_without_a_silence_before_it_is_told_at_once(answering: Answering) -> None:
    cluster = answering(FORBIDDEN)
    cluster.retry_seconds = 600.0
    with pytest.raises(Refused, match="GP303"):
        cluster.version()
    assert cluster.requests == 1


def test_a_refusal_right_after_a_silence_is_part_of_it(answering: Answering) -> None:
    """An API server that starts has not read its roles yet, and refuses everybody but administrators."""
    cluster = answering(AWAY, FORBIDDEN, FORBIDDEN, VERSION)
    cluster.retry_seconds = 600.0
    assert cluster.version() == "v1.34.1"


def test_lasting_refusal_after_a_silence_is_told(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SETTLING_SECONDS", 0.6)
    cluster = answering(AWAY, FORBIDDEN)
    cluster.retry_seconds = 600.0
    with pytest.raises(Refused, match="GP303"):
        cluster.version()


def test_a_watch_that_is_refused_right_after_a_silence_goes_on(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.05)
    empty = {"metadata": {"resourceVersion": "1"}, "items": []}
    torn = (200, {}, b'{"type": "ADD\n')
    cluster = answering((200, {}, json.dumps(empty).encode()), torn, FORBIDDEN, added("after"), (200, {}, b""))
    with Mirror(cluster, [Scope(CONFIG_MAP)], patience=600) as mirror:
        eventually(lambda: bool(mirror.of(CONFIG_MAP)), "the event after the refusal")


def test_silence_lasts_from_its_first_failure_to_the_next_answer(answering: Answering) -> None:
    cluster = answering(AWAY, AWAY, (404, {}, b"{}"))
    cluster.retry_seconds = 0.0
    assert cluster.health.silent_seconds == 0
    for _ in range(2):
        with pytest.raises(Unreachable):
            cluster.version()
        assert cluster.health.silent_seconds > 0
    assert cluster.served("none") == frozenset()
    assert cluster.health.silent_seconds == 0, "a refusal is an answer, too"


def test_cancelled_retries_end_all_waiting(answering: Answering) -> None:
    """Neither for what has been asked already nor for what is asked then."""
    cluster = answering(AWAY)
    cluster.retry_seconds = 600.0
    ended: list[Unreachable] = []

    def ask() -> None:
        with pytest.raises(Unreachable) as caught:
            cluster.version()
        ended.append(caught.value)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    eventually(lambda: cluster.requests > 0, "the first request")
    cluster.cancel_retries()
    asking.join(60)
    assert ended
    before = cluster.requests
    ask()
    assert cluster.requests == before + 1
