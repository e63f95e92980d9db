from __future__ import annotations

import pytest

from tests.contract.api.definitions import DEFINITIONS, GROUP, definition, establish
from tests.contract.api.samples import configmap, core, pod
from tests.contract.client import Event, Server


def seen(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.type, event.name) for event in events]


@pytest.mark.parametrize("version", ["", "&resourceVersion=0"], ids=["absent", "0"])
def test_a_watch_without_a_version_begins_with_what_is_there(server: Server, namespace: str, version: str) -> None:
    for name in ("one", "two"):
        server.make(core(namespace, "secrets"), {"metadata": {"name": name, "labels": {"ours": "true"}}})
    with server.watch(core(namespace, "secrets") + f"?labelSelector=ours{version}") as events:
        assert sorted(seen([events.next(), events.next()])) == [("ADDED", "one"), ("ADDED", "two")]
        server.make(core(namespace, "secrets"), {"metadata": {"name": "three", "labels": {"ours": "true"}}})
        assert seen([events.next()]) == [("ADDED", "three")]


def test_a_watch_from_the_version_of_a_list_misses_nothing(server: Server, namespace: str) -> None:
    path = core(namespace, "secrets")
    server.make(path, {"metadata": {"name": "before"}})
    version = server.get(path)["metadata"]["resourceVersion"]
    server.make(path, {"metadata": {"name": "one"}})
    server.patch(f"{path}/one", {"stringData": {"k": "v"}})
    server.delete(f"{path}/one")
    with server.watch(f"{path}?resourceVersion={version}&fieldSelector=type%3DOpaque") as events:
        found = events.until(lambda event: event.type == "DELETED")
    assert seen(found) == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


def test_versions_grow_from_event_to_event(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    version = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}") as events:
        for name in ("one", "two"):
            server.make(path, configmap(name))
        server.delete(f"{path}/one")
        found = events.until(lambda event: event.type == "DELETED")
    versions = [int(event.object["metadata"]["resourceVersion"]) for event in found]
    assert versions == sorted({*versions})


def test_a_deleted_event_holds_the_last_state(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    made = server.make(path, configmap("one", {"k": "v"}))
    with server.watch(f"{path}?resourceVersion={made['metadata']['resourceVersion']}") as events:
        server.delete(f"{path}/one")
        gone = events.until(lambda event: event.name == "one")[-1]
    assert (gone.type, gone.object["data"]) == ("DELETED", {"k": "v"})
    assert int(gone.object["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


def test_objects_of_events_name_their_kind(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    server.make(path, configmap("one"))
    with server.watch(f"{path}?fieldSelector=metadata.name%3Done") as events:
        found = events.next().object
    assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")


def test_leaving_a_selector_is_deleted_and_entering_it_added(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    version = server.make(path, configmap("one", labels={"in": "no"}))["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}&labelSelector=in%3Dyes") as events:
        for value in ("yes", "no", "yes"):
            server.patch(f"{path}/one", {"metadata": {"labels": {"in": value}}})
        server.patch(f"{path}/one", {"data": {"k": "v"}})
        server.delete(f"{path}/one")
        found = [events.next() for _ in range(5)]
    kinds = [event.type for event in found]
    assert kinds == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]


def test_an_object_that_left_a_selector_shows_its_last_state(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    version = server.make(path, configmap("one", labels={"in": "yes"}))["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}&labelSelector=in%3Dyes") as events:
        left = server.patch(f"{path}/one", {"metadata": {"labels": {"in": "no"}}})
        gone = events.next()
    assert gone.type == "DELETED"
    assert gone.object["metadata"]["labels"] == {"in": "yes"}
    assert gone.object["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


def test_a_watch_may_select_by_fields(server: Server, namespace: str) -> None:
    path = core(namespace, "pods")
    version = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}&fieldSelector=spec.nodeName%3Dcontract-nowhere") as events:
        server.make(path, pod("unbound"))
        server.make(path, pod("bound", nodeName="contract-nowhere", tolerations=[{"operator": "Exists"}]))
        assert seen([events.next()]) == [("ADDED", "bound")]


def test_a_watch_sees_its_namespace_only(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    version = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}") as events:
        server.make(core("default", "configmaps"), configmap(f"x-{namespace}"))
        server.make(path, configmap("one"))
        server.delete(core("default", "configmaps", f"x-{namespace}"))
        assert seen([events.next()]) == [("ADDED", "one")]


def test_a_watch_ends_after_the_seconds_it_asked_for(server: Server, namespace: str) -> None:
    version = server.get(core(namespace, "configmaps"))["metadata"]["resourceVersion"]
    with server.watch(core(namespace, "configmaps") + f"?timeoutSeconds=1&resourceVersion={version}") as events:
        assert {event.type for event in events} <= {"BOOKMARK"}


def test_bookmarks_tell_how_far_the_watch_has_come(server: Server, namespace: str) -> None:
    """A server promises none; the sandbox sends one at the latest at the end, so that clients meet them."""
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


def test_who_does_not_ask_for_bookmarks_gets_none(server: Server, namespace: str) -> None:
    version = server.get(core(namespace, "configmaps"))["metadata"]["resourceVersion"]
    with server.watch(core(namespace, "configmaps") + f"?timeoutSeconds=1&resourceVersion={version}") as events:
        assert not [event for event in events if event.type == "BOOKMARK"]


def test_a_watch_from_a_forgotten_version_fails_with_gone(server: Server, namespace: str) -> None:
    """The answer is 200, and its first event an ERROR with a Status: clients list again."""
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


def test_a_watch_from_a_future_version_times_out(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps") + "?watch=true&resourceVersion=999999999&timeoutSeconds=5"
    answer = server.ask("GET", path)
    assert answer.code in (200, 504), "some wait for it until the watch ends"


def test_many_kinds_of_watch_paths_are_the_same(server: Server, namespace: str) -> None:
    """``watch=1`` and ``watch=true`` mean a watch; one object is watched by a field selector."""
    path = core(namespace, "configmaps")
    server.make(path, configmap("one"))
    answer = server.ask("GET", f"{path}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Done")
    assert answer.code == 200


@pytest.mark.since(1, 32)
def test_initial_events_end_with_a_bookmark(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    server.make(path, configmap("one"))
    query = "?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with server.watch(path + query) as events:
        found = events.until(lambda event: event.type == "BOOKMARK")
    assert ("ADDED", "one") in seen(found)
    assert found[-1].object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_may_come_as_tables(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps")
    server.make(path, configmap("one"))
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    with server.watch(f"{path}?fieldSelector=metadata.name%3Done", accept=accept) as events:
        found = events.next()
    assert (found.type, found.object["kind"]) == ("ADDED", "Table")
    assert found.object["rows"][0]["cells"][0] == "one"
