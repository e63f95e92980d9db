"""The informer against an API that fails in the ways that API servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpu_provision.sandbox.api import ApiError, ApiResource, Object, ObjectEvent
from gpu_provision.sandbox.informer import Informer

PODS = ApiResource("", "v1", "pods")


def pod(name: str, version: int, *, uid: str = "", **metadata: Any) -> Object:
    """Return a pod."""
    own = {"name": name, "namespace": "n", "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": own | metadata}


class ScriptedApi:
    """Answers lists and watches from a script; a watch ends with the error that stands in it, or never."""

    def __init__(self, lists: list[tuple[list[Object], str] | Exception], watches: list[list[Any]]) -> None:
        """Take the script; the last list is repeated."""
        self.lists, self.watches = lists, watches
        self.asked: list[str] = []

    async def list(self, _resource: ApiResource, **_narrowed: str) -> tuple[list[Object], str]:
        """Return the next list."""
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, _resource: ApiResource, version: str, **_narrowed: str) -> AsyncIterator[ObjectEvent]:
        """Yield the next script; then wait for ever."""
        self.asked.append(version)
        for step in self.watches.pop(0) if self.watches else ():
            if isinstance(step, Exception):
                raise step
            yield step
        if not self.watches:
            await asyncio.Event().wait()


def follow(api: ScriptedApi, truth: Callable[[Informer, list[tuple[str, str]]], bool]) -> Informer:
    """Run an informer until ``truth(informer, events)`` holds."""
    events: list[tuple[str, str]] = []

    async def story() -> Informer:
        informer = Informer(api, PODS)  # type: ignore[arg-type]
        informer.index("node", lambda obj: [obj["metadata"].get("node", "")])
        informer.on_event(lambda change, obj: events.append((change, obj["metadata"]["name"])))
        task = asyncio.create_task(informer.run())
        try:
            async with asyncio.timeout(60):
                while not truth(informer, events):  # noqa: ASYNC110  the truth has no event of its own
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"never true; events {events}, objects {list(informer.objects)}")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return informer

    return asyncio.run(story())


def test_listed_and_watched_objects_are_known_and_indexed() -> None:
    """Every change reaches handlers, objects and indexes."""
    script = [
        ObjectEvent("ADDED", pod("b", 6, node="x")),
        ObjectEvent("MODIFIED", pod("a", 7, node="y")),
        ObjectEvent("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        ObjectEvent("DELETED", pod("b", 10, node="x")),
    ]
    api = ScriptedApi([([pod("a", 1, node="x")], "5")], [script])
    wanted = [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    informer = follow(api, lambda _, events: events == wanted)
    assert list(informer.objects) == [("n", "a")]
    assert informer.by("node", "x") == []
    assert [obj["metadata"]["name"] for obj in informer.by("node", "y")] == ["a"]
    assert api.asked == ["5"]


def test_an_expired_watch_leads_to_a_new_list() -> None:
    """What vanished meanwhile is DELETED, what changed is MODIFIED, what is equal is not told again."""
    api = ScriptedApi(
        [([pod("a", 1), pod("b", 2), pod("c", 3)], "5"), ([pod("b", 2), pod("c", 8), pod("d", 9)], "9")],
        [[ApiError(410, "Expired", "too old resource version")], []],
    )
    wanted = [("DELETED", "a"), ("MODIFIED", "c"), ("ADDED", "d")]
    follow(api, lambda _, events: events[3:] == wanted)
    assert api.asked == ["5", "9"]


def test_a_lost_connection_is_survived_also_while_listing() -> None:
    """Whatever the transport raises, the informer tries again."""
    api = ScriptedApi(
        [ConnectionError("refused"), ApiError(503, "Unavailable", "later"), ([pod("a", 1)], "5")],
        [[ConnectionError("reset")], [ObjectEvent("ADDED", pod("b", 6))]],
    )
    follow(api, lambda informer, _: len(informer.objects) == 2)


def test_a_watch_that_ends_goes_on_from_the_last_version() -> None:
    """Servers end watches after a while; bookmarks count."""
    first = [ObjectEvent("ADDED", pod("b", 6)), ObjectEvent("BOOKMARK", {"metadata": {"resourceVersion": "8"}})]
    api = ScriptedApi([([], "5")], [first, [ObjectEvent("ADDED", pod("c", 9))]])
    follow(api, lambda informer, _: len(informer.objects) == 2)
    assert api.asked == ["5", "8"]


def test_another_uid_is_another_object() -> None:
    """Its predecessor is DELETED first, also if a relist skipped that."""
    api = ScriptedApi(
        [([pod("a", 1, uid="old")], "5"), ([pod("a", 8, uid="new")], "9")], [[ApiError(410, "Expired", "")], []]
    )
    follow(api, lambda _, events: events == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")])


def test_a_handler_that_raises_does_not_blind_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged."""
    api = ScriptedApi([([pod("a", 1)], "5")], [])
    informer = follow(api, lambda informer, _: informer.is_synced)
    heard: list[str] = []
    informer.on_event(lambda _change, _obj: {}["missing"])
    informer.on_event(lambda change, _: heard.append(change))
    assert heard == ["ADDED"]
    assert "a handler failed" in caplog.text


def test_own_writes_are_observed_at_once() -> None:
    """``observe`` runs ahead of the watch; an answer that the watch has overtaken is dropped."""
    api = ScriptedApi([([pod("a", 1)], "5")], [])
    informer = follow(api, lambda informer, _: informer.is_synced)
    informer.observe(pod("a", 7, labels={"new": "yes"}))
    informer._take(ObjectEvent("MODIFIED", pod("a", 6)))
    assert informer.objects["n", "a"]["metadata"]["labels"] == {"new": "yes"}
    informer._take(ObjectEvent("DELETED", pod("a", 8)))
    informer.observe(pod("a", 7))
    assert informer.objects == {}


def test_own_deletions_are_shown_until_the_watch_says_more() -> None:
    """Also when an older event arrives in between."""
    api = ScriptedApi([([pod("a", 1)], "5")], [])
    informer = follow(api, lambda informer, _: informer.is_synced)
    informer.observe_deletion(informer.objects["n", "a"], "2026-01-01T00:00:00Z")
    informer._take(ObjectEvent("MODIFIED", pod("a", 6)))
    assert informer.objects["n", "a"]["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    informer._take(ObjectEvent("DELETED", pod("a", 7)))
    informer._take(ObjectEvent("ADDED", pod("a", 8, uid="next")))
    assert "deletionTimestamp" not in informer.objects["n", "a"]["metadata"]


def test_cancellation_ends_an_informer() -> None:
    """As asyncio.wait_for may before Python 3.12."""

    class Swallowing(ScriptedApi):
        async def watch(self, *_: Any, **__: Any) -> AsyncIterator[ObjectEvent]:
            for number in range(6, 1000):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    yield ObjectEvent("ADDED", pod("b", number))

    follow(Swallowing([([], "5")], []), lambda informer, _: informer.is_synced)
