"""What controllers share: supervision, bounded concurrency, work queues, and writes that are seen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gpu_provision.sandbox.api import PODS
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.server import bootstrap
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import manager
from gpu_provision.sandbox.controllers.manager import (
    ControllerManager,
    QueueController,
    WorkQueue,
    gather_all,
    supervise,
)


def play(story: Awaitable[None]) -> None:
    """Run a story, at most a minute long."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await story

    asyncio.run(run())


async def run_until(work: Awaitable[None], condition: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(work)
    while not condition():  # noqa: ASYNC110  what runs sets no event
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_what_fails_is_logged_and_run_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(manager, "_RESTART_SECONDS", 0.0)
    runs: list[int] = []

    async def fail_twice() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise RuntimeError
        await asyncio.Event().wait()

    play(run_until(supervise(fail_twice, "the thing"), lambda: len(runs) == 3))
    assert caplog.text.count("the thing failed; it is started again") == 2


def test_one_key_that_fails_does_not_stop_the_others() -> None:
    """And it is tried again, later each time, until a success."""
    tried: list[str] = []
    delays: list[float] = []

    class Fragile(QueueController[str]):
        async def sync(self, key: str) -> None:
            tried.append(key)
            if key == "bad" and tried.count("bad") < 4:
                raise KeyError(key)

    async def story() -> None:
        fragile = Fragile(ControllerManager(None))  # type: ignore[arg-type]
        fragile.queue.add_after = lambda key, delay: (delays.append(delay), fragile.queue.add(key))  # type: ignore[method-assign,assignment]
        for key in ("bad", "good"):
            fragile.queue.add(key)
        await run_until(fragile.run(), lambda: tried.count("bad") == 4)

    play(story())
    assert "good" in tried
    assert delays == [0.02, 0.04, 0.08]


def test_gather_all_runs_32_at_a_time_and_raises_last() -> None:
    running, most, done = [0], [0], [0]

    async def work(number: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1
        done[0] += 1
        if number == 5:
            raise KeyError(number)

    with pytest.raises(KeyError):
        asyncio.run(gather_all([work(number) for number in range(100)]))
    assert (most, done) == ([32], [100])


def test_own_writes_are_in_the_informer_when_they_return() -> None:
    """So that no controller creates or deletes twice; and only what differs of a status is written."""
    registry = Registry(Store())
    bootstrap(registry, "")

    async def story() -> None:
        cluster = ControllerManager(LocalApi(registry))
        informer = cluster.informer(PODS)
        await informer._relist()
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        made = await cluster.create(PODS, body, "default")
        assert informer.objects["default", "p"] == made
        await cluster.write_status(PODS, made, {"phase": "Running", "podIP": None})
        written = informer.objects["default", "p"]
        assert written["status"]["phase"] == "Running"
        await cluster.write_status(PODS, written, {"phase": "Running", "podIP": None})
        assert informer.objects["default", "p"] is written
        await cluster.delete(PODS, written)
        assert informer.objects["default", "p"]["metadata"]["deletionTimestamp"]
        await cluster.delete(PODS, {"metadata": {"name": "none", "namespace": "default"}})

    play(story())
    registry.store.close()


def test_a_key_is_handed_out_once_and_again_if_added_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of first addition, never to two workers at the same time, after the shortest of several delays."""
    monkeypatch.setattr(manager, "_REST_FACTOR", 0.0)

    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        queue.add("a")
        queue.add("a")
        assert not queue._ready
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert not queue._ready
        for delay in (3600.0, 0.01, 3600.0):
            queue.add_after("a", delay)
        assert await queue.get() == "a"

    play(story())


def test_an_expensive_key_rests_before_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do not wait for it."""
    monkeypatch.setattr(manager, "_MAX_REST", 0.01)

    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("dear")
        await queue.get()
        queue._started["dear"] -= 60.0
        queue.add("dear")
        queue.done("dear")
        assert not queue._ready
        queue.add("cheap")
        assert await queue.get() == "cheap"
        queue.done("cheap")
        assert await queue.get() == "dear"

    play(story())
