"""What controllers share: supervision, bounded concurrency, and writes that are seen at once."""

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


def on_registry(story: Callable[[LocalApi], Awaitable[None]]) -> None:
    """Run a story with an empty cluster in memory."""
    registry = Registry(Store())
    bootstrap(registry, "")
    asyncio.run(story(LocalApi(registry)))
    registry.store.close()


def test_what_fails_is_logged_and_run_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Until it is cancelled."""
    monkeypatch.setattr(manager, "_RESTART_SECONDS", 0.0)
    runs: list[int] = []

    async def fail_twice() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            message = "broken"
            raise RuntimeError(message)
        await asyncio.Event().wait()

    async def story() -> None:
        task = asyncio.create_task(supervise(fail_twice, "the thing"))
        async with asyncio.timeout(60):
            while len(runs) < 3:  # noqa: ASYNC110  what runs sets no event
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert caplog.text.count("the thing failed; it is started again") == 2


def test_one_key_that_fails_does_not_stop_the_others() -> None:
    """And it is tried again."""
    tried: list[str] = []

    class Fragile(QueueController[str]):
        async def sync(self, key: str) -> None:
            tried.append(key)
            if key == "bad" and tried.count("bad") < 3:
                raise KeyError(key)

    async def story() -> None:
        fragile = Fragile(ControllerManager(None))  # type: ignore[arg-type]
        for key in ("bad", "good"):
            fragile.queue.add(key)
        task = asyncio.create_task(fragile.run())
        async with asyncio.timeout(60):
            while tried.count("bad") < 3:  # noqa: ASYNC110  the controller sets no event
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
    assert "good" in tried


def test_gather_all_runs_32_at_a_time_and_raises_last() -> None:
    """None is left behind."""
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
    assert most == [32]
    assert done == [100]


def test_own_writes_are_in_the_informer_when_they_return() -> None:
    """So that no controller creates or deletes twice; and only what differs of a status is written."""

    async def story(api: LocalApi) -> None:
        cluster = ControllerManager(api)
        informer = cluster.informer(PODS)
        await informer._relist()
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
        }
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

    on_registry(story)


def play(story: Callable[[WorkQueue[str]], Awaitable[None]]) -> None:
    """Run a story with a fresh queue, at most a minute long."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await story(WorkQueue())

    asyncio.run(run())


def test_a_key_is_handed_out_once_and_again_if_added_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of first addition, and never to two workers at the same time."""
    monkeypatch.setattr(manager, "_REST_FACTOR", 0.0)

    async def story(queue: WorkQueue[str]) -> None:
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        assert [await queue.take(), await queue.take()] == ["a", "b"]
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.take() == "a"
        queue.done("a")
        assert len(queue) == 0

    play(story)


def test_of_several_delays_the_shortest_counts() -> None:
    """And the key comes once."""

    async def story(queue: WorkQueue[str]) -> None:
        for delay in (3600.0, 0.01, 3600.0):
            queue.add_after("a", delay)
        assert await queue.take() == "a"

    play(story)


def test_failures_come_back_later_each_time_until_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay doubles; a success forgets the failures."""
    delays: list[float] = []

    async def story(queue: WorkQueue[str]) -> None:
        monkeypatch.setattr(queue, "add_after", lambda key, delay: (delays.append(delay), queue.add(key)))
        for failed in (True, True, True, False, True):
            queue.add("a")
            await queue.take()
            queue.done("a", failed=failed)

    play(story)
    assert delays == [0.02, 0.04, 0.08, 0.02]


def test_an_expensive_key_rests_before_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do not wait for it."""
    monkeypatch.setattr(manager, "_LONGEST_REST", 0.01)

    async def story(queue: WorkQueue[str]) -> None:
        queue.add("dear")
        await queue.take()
        queue._started["dear"] -= 60.0
        queue.add("dear")
        queue.done("dear")
        assert len(queue) == 0
        queue.add("cheap")
        assert await queue.take() == "cheap"
        queue.done("cheap")
        assert await queue.take() == "dear"

    play(story)
