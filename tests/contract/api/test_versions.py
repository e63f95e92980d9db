from __future__ import annotations

from tests.contract.client import Server


def test_the_version_is_told_to_everybody(server: Server) -> None:
    answer = server.ask("GET", "/version")
    assert answer.code == 200
    assert {"major", "minor", "gitVersion", "platform"} <= answer.body.keys()
    assert server.version >= (1, 20)
