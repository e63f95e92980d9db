"""An API server that does not answer, that has just come back, or whose objects move on before a write."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from gpu_provision.kube import transport
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import ConflictError
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import Refused, Unreachable
from tests.kube.conftest import Canned


class MovingServer:
    """One object whose version moves on before each apply, as a rollout moves it; it remembers what was applied."""

    def __init__(self, *, moves: int, edits: int = 0) -> None:
        """Move the version on before that many applies; ``edits`` says whether the generation moves, too."""
        self.version, self.generation, self.moves, self.edits = 10, 2, moves, edits
        self.applied: list[dict[str, Any]] = []

    def request(self, verb: str, _path: str, *, body: Any = None, **_: Any) -> SimpleNamespace:
        """Answer as the client library's own client does."""
        metadata = {"name": "d", "resourceVersion": str(self.version), "generation": self.generation}
        if verb == "get":
            return self._answer({"metadata": metadata})
        if self.moves:
            self.moves, self.version, self.generation = self.moves - 1, self.version + 1, self.generation + self.edits
        if body["metadata"].get("resourceVersion") != str(self.version):
            error = ApiException(status=409, reason="Conflict")
            error.body = json.dumps({"kind": "Status", "reason": "Conflict", "message": "the object has been modified"})
            raise error
        self.applied.append(body)
        return self._answer(body)

    @staticmethod
    def _answer(body: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(status=200, headers={}, data=json.dumps(body).encode())


def manifest(**metadata: Any) -> dict[str, Any]:
    """A DaemonSet as it was looked at."""
    named = {"name": "d", "namespace": "n", "resourceVersion": "10", **metadata}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": named}


def test_a_status_that_moves_on_is_no_obstacle() -> None:
    """In a rollout, it moves on several times a second."""
    server = MovingServer(moves=3)
    Cluster(server, name="c", server="s").apply(manifest(generation=2), take_back=True)
    assert [body["metadata"]["resourceVersion"] for body in server.applied] == ["13"]


def test_another_edit_in_between_is_not_forced_away() -> None:
    server = MovingServer(moves=1, edits=1)
    with pytest.raises(ConflictError):
        Cluster(server, name="c", server="s").apply(manifest(generation=2), take_back=True)
    assert server.applied == []


@pytest.mark.parametrize("take_back", [True, False])
def test_without_a_generation_nothing_is_tried_again(*, take_back: bool) -> None:
    server = MovingServer(moves=1)
    with pytest.raises(ConflictError):
        Cluster(server, name="c", server="s").apply(manifest(), take_back=take_back)
    assert server.applied == []


def test_a_status_that_never_rests_is_given_up() -> None:
    server = MovingServer(moves=1_000)
    with pytest.raises(ConflictError):
        Cluster(server, name="c", server="s").apply(manifest(generation=2), take_back=True)
    assert server.applied == []


Answering = Callable[..., Cluster]
CONFIG_MAP = Kind("v1", "ConfigMap")
AWAY: Canned = (502, {}, b"Bad Gateway")
VERSION: Canned = (200, {}, b'{"gitVersion": "v1.34.1"}')
_STATUS = {"kind": "Status", "reason": "Forbidden", "message": 'User "me" cannot get path "/version"', "code": 403}
FORBIDDEN: Canned = (403, {}, json.dumps(_STATUS).encode())


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
