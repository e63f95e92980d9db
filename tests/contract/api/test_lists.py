from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.contract.api.samples import configmap, core, names
from tests.contract.client import Server, until
from tests.contract.servers import is_furnished

MADE = [f"c-{number}" for number in range(7)]


@pytest.fixture(scope="module")
def path(server: Server) -> Iterator[str]:
    """The path of a collection of seven ConfigMaps, with the selector that leaves others out."""
    made = server.make("/api/v1/namespaces", {"metadata": {"generateName": "contract-"}})["metadata"]["name"]
    until(lambda: is_furnished(server, made))
    for name in MADE:
        server.make(core(made, "configmaps"), configmap(name, labels={"ours": "true"}))
    yield core(made, "configmaps") + "?labelSelector=ours"
    server.delete(f"/api/v1/namespaces/{made}")


def test_a_list_has_the_version_to_watch_from(server: Server, path: str) -> None:
    found = server.get(path)
    assert int(found["metadata"]["resourceVersion"]) > 0
    assert "continue" not in found["metadata"]
    assert names(found) == MADE


def test_the_version_of_a_list_is_not_older_than_its_items(server: Server, path: str) -> None:
    found = server.get(path)
    version = int(found["metadata"]["resourceVersion"])
    assert all(int(item["metadata"]["resourceVersion"]) <= version for item in found["items"])


def test_pages_follow_each_other_until_there_are_no_more(server: Server, path: str) -> None:
    pages, token = [], ""
    while True:
        found = server.get(f"{path}&limit=3&continue={token}")
        pages.append(names(found))
        token = found["metadata"].get("continue", "")
        if not token:
            break
    assert pages == [MADE[:3], MADE[3:6], MADE[6:]]


def test_a_page_without_a_selector_counts_what_remains(server: Server, path: str) -> None:
    bare = path.partition("?")[0]
    total = len(server.get(bare)["items"])
    metadata = server.get(f"{bare}?limit=3")["metadata"]
    assert metadata["remainingItemCount"] == total - 3


def test_a_page_with_a_selector_cannot_count_what_remains(server: Server, path: str) -> None:
    assert "remainingItemCount" not in server.get(f"{path}&limit=3")["metadata"]


def test_a_limit_that_is_not_reached_gives_the_whole_list(server: Server, path: str) -> None:
    found = server.get(f"{path}&limit=500")
    assert names(found) == MADE
    assert "continue" not in found["metadata"]


def test_all_pages_have_the_version_of_the_first(server: Server, path: str) -> None:
    first = server.get(f"{path}&limit=3")["metadata"]
    collection = path.partition("?")[0]
    server.patch(f"{collection}/c-6", {"data": {"k": "later"}})
    second = server.get(f"{path}&limit=3&continue={first['continue']}")["metadata"]
    assert second["resourceVersion"] == first["resourceVersion"]


def test_a_token_that_is_none_is_a_bad_request(server: Server, path: str) -> None:
    answer = server.ask("GET", f"{path}&limit=3&continue=nonsense")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert "continue key is not valid" in answer.message


def test_a_token_and_a_version_exclude_each_other(server: Server, path: str) -> None:
    token = server.get(f"{path}&limit=3")["metadata"]["continue"]
    answer = server.ask("GET", f"{path}&limit=3&continue={token}&resourceVersion=1")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert "specifying resource version is not allowed when using continue" in answer.message


def test_a_token_from_before_the_history_ends_has_expired(server: Server, path: str) -> None:
    """410; the answer holds a token that goes on with the present state."""
    if server.compact is None:
        pytest.skip("the history of this cluster cannot be cut from outside")
    token = server.get(f"{path}&limit=3")["metadata"]["continue"]
    server.patch(f"{path.partition('?')[0]}/c-0", {"data": {"k": "later"}})
    server.compact()
    answer = server.ask("GET", f"{path}&limit=3&continue={token}")
    if answer.code == 200:
        assert server.at_least(1, 30), "newer servers have the past at hand themselves"
        assert (server.kind, names(answer.body)) == ("real", MADE[3:6])
        return
    assert (answer.code, answer.reason) == (410, "Expired")
    assert "The provided continue parameter is too old" in answer.message
    again = server.get(f"{path}&limit=3&continue={answer.body['metadata']['continue']}")
    assert names(again) == MADE[3:6]


def test_a_list_may_be_of_any_version_in_the_cache(server: Server, path: str) -> None:
    assert sorted(names(server.get(f"{path}&resourceVersion=0"))) == MADE, "older servers do not sort these"


def test_a_list_is_as_new_as_the_version_asked_for(server: Server, path: str) -> None:
    collection = path.partition("?")[0]
    version = server.patch(f"{collection}/c-1", {"data": {"k": "newest"}})["metadata"]["resourceVersion"]
    found = server.get(f"{path}&resourceVersion={version}")
    assert int(found["metadata"]["resourceVersion"]) >= int(version)
    assert [item["data"]["k"] for item in found["items"] if item["metadata"]["name"] == "c-1"] == ["newest"]


def test_an_object_is_as_new_as_the_version_asked_for(server: Server, path: str) -> None:
    collection = path.partition("?")[0]
    version = server.patch(f"{collection}/c-1", {"data": {"k": "newer"}})["metadata"]["resourceVersion"]
    assert server.get(f"{collection}/c-1?resourceVersion={version}")["data"] == {"k": "newer"}


def test_a_version_that_does_not_exist_yet_times_out(server: Server, path: str) -> None:
    answer = server.ask("GET", f"{path}&resourceVersion=999999999")
    assert (answer.code, answer.reason) == (504, "Timeout")
    assert "Too large resource version: 999999999" in answer.message
    assert answer.causes[0]["reason"] == "ResourceVersionTooLarge"
    assert answer.body["details"]["retryAfterSeconds"] == 1


@pytest.mark.parametrize("version", ["x", "-1", "1.5"])
def test_a_version_that_is_no_number_is_a_bad_request(server: Server, path: str, version: str) -> None:
    answer = server.ask("GET", f"{path}&resourceVersion={version}")
    assert answer.code == (400 if server.at_least(1, 25) else answer.code)
    assert answer.code >= 400
    assert "resource version" in answer.message.lower() or "resourceVersion" in answer.message


def test_a_limit_that_is_no_number_is_a_bad_request(server: Server, path: str) -> None:
    answer = server.ask("GET", f"{path}&limit=many")
    assert (answer.code, answer.reason) == (400, "BadRequest")


def test_lists_of_metadata_alone_leave_the_rest_out(server: Server, path: str) -> None:
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    found = server.ask("GET", path, accept=accept).body
    assert found["kind"] == "PartialObjectMetadataList"
    assert names(found) == MADE
    assert all({*item} <= {"kind", "apiVersion", "metadata"} for item in found["items"])


def test_a_list_is_one_json_document(server: Server, path: str) -> None:
    assert json.loads(json.dumps(server.get(path)))["kind"] == "ConfigMapList"
