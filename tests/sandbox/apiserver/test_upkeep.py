"""What the server does by itself."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.apiserver import server
from tests.sandbox.apiserver.conftest import Cluster

EVENTS = "api/v1/namespaces/default/events"


def test_the_oldest_events_make_room(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay, so the file does not grow for ever."""
    monkeypatch.setattr(server, "MOST_EVENTS", 10)
    monkeypatch.setattr(server, "DROPPED_AT_ONCE", 4)
    server.keep_up(cluster.registry)
    for number in range(11):
        cluster.create(EVENTS, f"e{number}", involvedObject={"kind": "Pod", "name": "x"})
    names = {item.object["metadata"]["name"] for item in cluster.store.select("/events")}
    assert names == {f"e{number}" for number in range(4, 11)}
