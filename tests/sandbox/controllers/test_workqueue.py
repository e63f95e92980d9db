"""The queue that controllers work from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gpu_provision.sandbox.controllers import workqueue
from gpu_provision.sandbox.controllers.workqueue import WorkQueue


def play(story: Callable[[WorkQueue[str]], Awaitable[None]]) -> None:
    """Run a story with a fresh queue, at most a minute long."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await story(WorkQueue())

    asyncio.run(run())


def test_a_key_is_handed_out_once_however_often_it_was_added() -> None:
    """In the order of first addition."""

    async def story(queue: WorkQueue[str]) -> None:
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        assert len(queue) == 2
        assert [await queue.take(), await queue.take()] == ["a", "b"]

    play(story)


def test_a_key_that_is_added_during_its_work_comes_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and never to two workers at the same time."""
    monkeypatch.setattr(workqueue, "_REST_FACTOR", 0.0)

    async def story(queue: WorkQueue[str]) -> None:
        queue.add("a")
        assert await queue.take() == "a"
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
    monkeypatch.setattr(workqueue, "_LONGEST_REST", 0.01)

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


def test_every_waiting_worker_gets_a_key() -> None:
    """No wake-up is lost."""

    async def story(queue: WorkQueue[str]) -> None:
        workers = [asyncio.create_task(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in ("a", "b", "c"):
            queue.add(key)
        assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]

    play(story)
