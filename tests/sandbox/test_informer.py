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
    own = {"name": name, "namespace": "n", "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": own | metadata}


class _ScriptedApi:
    """Answers lists and watches from a script; a watch ends with the error that stands in it, or never."""

    def __init__(self, lists: list[tuple[list[Object], str] | Exception], watches: list[list[Any]]) -> None:
        self.lists, self.watches = lists, watches
        self.asked: list[str] = []

    async def list(self, _resource: ApiResource, **_narrowed: str) -> tuple[list[Object], str]:
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, _resource: ApiResource, version: str, **_narrowed: str) -> AsyncIterator[ObjectEvent]:
        self.asked.append(version)
        for step in self.watches.pop(0) if self.watches else ():
            if isinstance(step, Exception):
                raise step
            yield step
        if not self.watches:
            await asyncio.Event().wait()


def follow(api: _ScriptedApi, truth: Callable[[Informer, list[tuple[str, str]]], bool]) -> Informer:
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
    api = _ScriptedApi([([pod("a", 1, node="x")], "5")], [script])
    wanted = [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    informer = follow(api, lambda _, events: events == wanted)
    assert list(informer.objects) == [("n", "a")]
    assert informer.by_index("node", "x") == []
    assert [obj["metadata"]["name"] for obj in informer.by_index("node", "y")] == ["a"]
    assert api.asked == ["5"]


def test_an_expired_watch_leads_to_a_new_list() -> None:
    """What vanished or has another uid is DELETED, what changed is MODIFIED, what is equal is not told again."""
    before = [pod("a", 1), pod("b", 2), pod("c", 3), pod("e", 4, uid="old")]
    after = [pod("b", 2), pod("c", 8), pod("d", 9), pod("e", 9, uid="new")]
    api = _ScriptedApi([(before, "5"), (after, "9")], [[ApiError(410, "Expired", "too old resource version")], []])
    wanted = [("DELETED", "a"), ("MODIFIED", "c"), ("ADDED", "d"), ("DELETED", "e"), ("ADDED", "e")]
    follow(api, lambda _, events: events[4:] == wanted)
    assert api.asked == ["5", "9"]


def test_a_lost_connection_is_survived_also_while_listing() -> None:
    """A watch that ends goes on from the last version, that of a bookmark too."""
    events = [ObjectEvent("ADDED", pod("b", 6)), ObjectEvent("BOOKMARK", {"metadata": {"resourceVersion": "8"}})]
    api = _ScriptedApi(
        [ConnectionError("refused"), ApiError(503, "Unavailable", "later"), ([pod("a", 1)], "5")],
        [[ConnectionError("reset")], events, [ObjectEvent("ADDED", pod("c", 9))]],
    )
    follow(api, lambda informer, _: len(informer.objects) == 3)
    assert api.asked == ["5", "5", "8"]


def test_a_handler_that_raises_does_not_blind_the_others(caplog: pytest.LogCaptureFixture) -> None:
    informer = synced()
    heard: list[str] = []
    informer.on_event(lambda _change, _obj: {}["missing"])
    informer.on_event(lambda change, _: heard.append(change))
    assert heard == ["ADDED"]
    assert "a handler failed" in caplog.text


def test_own_writes_are_observed_at_once() -> None:
    """``observe`` runs ahead of the watch, which may bring older events, and drops what that has overtaken."""
    informer = synced()
    informer.observe(pod("a", 7, labels={"new": "yes"}))
    informer._handle_event(ObjectEvent("MODIFIED", pod("a", 6)))
    assert informer.objects["n", "a"]["metadata"]["labels"] == {"new": "yes"}
    informer.observe_deletion(informer.objects["n", "a"], "2026-01-01T00:00:00Z")
    informer._handle_event(ObjectEvent("MODIFIED", pod("a", 8)))
    assert informer.objects["n", "a"]["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    informer._handle_event(ObjectEvent("DELETED", pod("a", 9)))
    informer.observe(pod("a", 8))
    assert informer.objects == {}
    informer._handle_event(ObjectEvent("ADDED", pod("a", 10, uid="next")))
    assert "deletionTimestamp" not in informer.objects["n", "a"]["metadata"]


def synced() -> Informer:
    """Return an informer that knows the pod ``a`` of version 1 and follows no more."""
    return follow(_ScriptedApi([([pod("a", 1)], "5")], []), lambda informer, _: informer.is_synced)


def test_cancellation_ends_an_informer() -> None:
    """As asyncio.wait_for may before Python 3.12."""

    class Swallowing(_ScriptedApi):
        async def watch(self, *_: Any, **__: Any) -> AsyncIterator[ObjectEvent]:
            for number in range(6, 1000):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    yield ObjectEvent("ADDED", pod("b", number))

    follow(Swallowing([([], "5")], []), lambda informer, _: informer.is_synced)
