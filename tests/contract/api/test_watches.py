from __future__ import annotations

from tests.contract.api.definitions import DEFINITIONS, GROUP, definition, establish
from tests.contract.api.samples import configmap, core
from tests.contract.client import Server


def test_a_watch_ends_after_the_seconds_it_asked_for(server: Server, namespace: str) -> None:
    version = server.get(core(namespace, "configmaps"))["metadata"]["resourceVersion"]
    with server.watch(core(namespace, "configmaps") + f"?timeoutSeconds=1&resourceVersion={version}") as events:
        assert list(events) == [], "no bookmarks either, which were not asked for"


def test_bookmarks_tell_how_far_the_watch_has_come(server: Server, namespace: str) -> None:
    """Optional for servers; the sandbox sends one at the end of a watch at the latest."""
    path = core(namespace, "configmaps")
    version = server.make(path, configmap("one"))["metadata"]["resourceVersion"]
    query = f"?resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=1"
    with server.watch(path + query) as events:
        found = [event for event in events if event.type == "BOOKMARK"]
    assert found or server.kind == "real"
    for bookmark in found:
        assert bookmark.object["kind"] == "ConfigMap"
        assert int(bookmark.object["metadata"]["resourceVersion"]) >= int(version)
        assert "data" not in bookmark.object


def test_a_watch_from_a_forgotten_version_fails_with_gone(server: Server, namespace: str) -> None:
    """With code 200 and an ERROR event with a Status: clients list again."""
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/{establish(server, definition('olds'))}"
    if server.compact:
        server.compact()  # a real server knows no past of a resource that is new
    with server.watch(f"{path}?resourceVersion=1") as events:
        error = events.next()
        rest = list(events)
    assert error.type == "ERROR"
    assert (error.object["kind"], error.object["code"]) == ("Status", 410)
    assert error.object["reason"] in ("Expired", "Gone")
    assert error.object["message"].startswith("too old resource version: 1")
    assert rest == []
    server.delete(f"{DEFINITIONS}/olds.{GROUP}")
