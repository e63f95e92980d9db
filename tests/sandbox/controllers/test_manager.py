"""What controllers share: supervision, bounded concurrency, and writes that are seen at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, EVENTS, PODS
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
from gpu_provision.sandbox.events import EventSource


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


def test_a_cancelled_supervisor_ends() -> None:
    """A TaskGroup reports the failure instead of the cancellation."""

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            message = "meanwhile"
            raise RuntimeError(message) from None

    async def story() -> None:
        task = asyncio.create_task(supervise(fails_when_cancelled, "the thing"))
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(story())


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


def test_own_writes_are_in_the_informer_when_they_return(tmp_path: Path) -> None:
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

    registry = Registry(Store(tmp_path / "store.db"))
    bootstrap(registry, "")
    asyncio.run(story(LocalApi(registry)))
    registry.store.close()


def test_an_event_that_was_deleted_is_recorded_anew(tmp_path: Path) -> None:
    """And equal ones are counted in one object."""

    async def story(api: LocalApi) -> None:
        cluster = ControllerManager(api)
        subject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
        subject = await api.create(CONFIG_MAPS, subject, "default")
        task = asyncio.create_task(cluster.recorder.run())

        async def counted(number: int) -> Any:
            about = objects.reference(subject)
            cluster.recorder.record(about, "Seen", "again", source=EventSource(component="test"))
            async with asyncio.timeout(60):
                while True:
                    events, _ = await api.list(EVENTS, "default")
                    if [one["count"] for one in events] == [number]:
                        return events[0]["metadata"]["name"]
                    await asyncio.sleep(0)

        await counted(1)
        name = await counted(2)
        await api.delete(EVENTS, name, "default")
        assert await counted(3) == name
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    registry = Registry(Store(tmp_path / "store.db"))
    bootstrap(registry, "")
    asyncio.run(story(LocalApi(registry)))
    registry.store.close()


@pytest.mark.filterwarnings("error")
def test_cancelled_works_leave_no_warning() -> None:
    """A sandbox is ended in the middle of making a hundred pods."""
    begun = []

    async def work(number: int, first: asyncio.Event) -> None:
        begun.append(number)
        first.set()
        await asyncio.Event().wait()

    async def main() -> None:
        first = asyncio.Event()
        task = asyncio.create_task(gather_all([work(number, first) for number in range(100)]))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    assert 0 < len(begun) < 100


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


def test_a_key_added_during_its_work_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and never to two workers at the same time."""
    monkeypatch.setattr(manager, "_REST_FACTOR", 0.0)

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


def test_every_waiting_worker_gets_a_key() -> None:
    """No wake-up is lost."""

    async def story(queue: WorkQueue[str]) -> None:
        workers = [asyncio.create_task(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in ("a", "b", "c"):
            queue.add(key)
        assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]

    play(story)
