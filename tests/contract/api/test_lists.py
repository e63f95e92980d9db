from __future__ import annotations

import pytest

from tests.contract.api.samples import configmap, core, names
from tests.contract.client import Server


def test_a_token_from_before_the_history_ends_has_expired(server: Server, namespace: str) -> None:
    """410; the response has a token for an inconsistent continuation."""
    if server.compact is None:
        pytest.skip("the history of this cluster cannot be cut from outside")
    path = core(namespace, "configmaps")
    for name in ("c-1", "c-2", "c-3"):
        server.make(path, configmap(name, labels={"ours": "true"}))
    query = "?labelSelector=ours&limit=2&continue="
    token = server.get(path + query)["metadata"]["continue"]
    server.patch(f"{path}/c-1", {"data": {"k": "later"}})
    server.compact()
    answer = server.ask("GET", path + query + token)
    if answer.code == 200:
        assert server.at_least(1, 30), "newer servers have the past at hand themselves"
        assert (server.kind, names(answer.body)) == ("real", ["c-3"])
        return
    assert (answer.code, answer.reason) == (410, "Expired")
    assert "The provided continue parameter is too old" in answer.message
    assert names(server.get(path + query + answer.body["metadata"]["continue"])) == ["c-3"]
