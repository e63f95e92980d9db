"""What all controllers share: informers, writes, work queues, and the ownership of objects by selector."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFLICT, NOT_FOUND, PODS, Api, ApiError, ApiResource, Object, ignoring
from gpu_provision.sandbox.events import EventRecorder
from gpu_provision.sandbox.informer import Informer, end_if_cancelled
from gpu_provision.sandbox.objects import Key, name, namespace, uid

K = TypeVar("K", bound=Hashable)
OWNED = "controller uid"
_ORPHANS = "orphans of namespace"
_FIRST_RETRY, _MAX_RETRY = 0.01, 30.0
_REST_FACTOR, _MAX_REST, _NO_REST = 2.0, 0.5, 0.001
_AT_ONCE = 32
_RESTART_SECONDS = 1.0
_log = logging.getLogger(__name__)


async def claim_objects(cluster: ControllerManager, owner: Object, owned: ApiResource) -> list[Object]:
    """Return the objects of the owner's selector after adopting and releasing. Raises ApiError."""
    informer, selector = cluster.informer(owned), owner["spec"]["selector"]

    async def write_owners(obj: Object, owners: list[dict[str, Any]]) -> Object:
        version = {key: obj["metadata"][key] for key in ("uid", "resourceVersion")}
        return await cluster.patch(owned, obj, {"metadata": {**version, "ownerReferences": owners}})

    mine: list[Object] = []
    for obj in informer.by_index(OWNED, uid(owner)):
        if objects.matches_selector(selector, objects.labels(obj)) or objects.is_deleting(obj):
            mine.append(obj)
        elif not objects.is_deleting(owner):
            await write_owners(obj, [one for one in objects.owners(obj) if one["uid"] != uid(owner)])
    if objects.is_deleting(owner):
        return mine
    for obj in informer.by_index(_ORPHANS, namespace(owner)):
        ended = objects.is_deleting(obj) or (owned == PODS and objects.is_finished(obj))
        if not ended and objects.matches_selector(selector, objects.labels(obj)):
            mine.append(await write_owners(obj, [*objects.owners(obj), objects.controller_ref(owner)]))
    return mine


def enqueue_owners(
    cluster: ControllerManager, resource: ApiResource, owned: ApiResource, add: Callable[[Key], None]
) -> None:
    """Enqueue the owner when an owned object changes, and every owner that may adopt an orphan."""
    owners, informer = cluster.informer(resource), cluster.informer(owned)
    informer.index(OWNED, lambda obj: [owner] if (owner := objects.controller_uid(obj)) else [])
    informer.index(_ORPHANS, lambda obj: [] if objects.controller_of(obj) else [namespace(obj)])
    owners.index("uid", lambda obj: [uid(obj)])
    owners.index("namespace", lambda obj: [namespace(obj)])

    def on_change(old: Object | None, new: Object | None) -> None:
        for owner_uid in {objects.controller_uid(obj) for obj in (old, new) if obj is not None} - {""}:
            for owner in owners.by_index("uid", owner_uid):
                add(objects.key_of(owner))
        if new is not None and not objects.controller_of(new) and not objects.is_deleting(new):
            for owner in owners.by_index("namespace", namespace(new)):
                if objects.matches_selector(owner["spec"].get("selector"), objects.labels(new)):
                    add(objects.key_of(owner))

    informer.on_change(on_change)


class WorkQueue(Generic[K]):
    """Keys to work on, in the order in which they became ready."""

    def __init__(self) -> None:
        """Start empty."""
        self._ready: dict[K, None] = {}
        self._started: dict[K, float] = {}
        self._requeued: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Have the key worked on; after the present work on it, if there is any."""
        if key in self._started:
            self._requeued.add(key)
            return
        self._ready[key] = None
        self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key worked on after a delay; of several delays the shortest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(seconds, 0.0)
        present = self._timers.get(key)
        if present is not None:
            if present.when() <= due:
                return
            present.cancel()

        def add() -> None:
            self._timers.pop(key, None)
            self.add(key)

        self._timers[key] = loop.call_at(due, add)

    async def get(self) -> K:
        """Wait for a key and return it; the caller ends with ``done``."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._started[key] = time.monotonic()
        return key

    def done(self, key: K, *, failed: bool = False) -> None:
        """End the work on a key; after a failure it comes again, later each time. A costly key rests first."""
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, min(_FIRST_RETRY * 2.0 ** min(count, 20), _MAX_RETRY))
        else:
            self._failures.pop(key, None)
        cost = time.monotonic() - self._started[key]
        rest = min(cost * _REST_FACTOR * len(self._started), _MAX_REST)
        if rest < _NO_REST:
            self._release(key)
        else:
            asyncio.get_running_loop().call_later(rest, self._release, key)

    def _release(self, key: K) -> None:
        del self._started[key]
        if key in self._requeued:
            self._requeued.discard(key)
            self.add(key)


class ControllerManager:
    """The API, the informers and the recorder that all controllers use."""

    def __init__(self, api: Api) -> None:
        """Prepare; informers start when ``run`` runs, or at once if it does already."""
        self.api = api
        self.recorder = EventRecorder(api)
        self._informers: dict[ApiResource, Informer] = {}
        self._running: asyncio.TaskGroup | None = None
        self._tasks: dict[ApiResource, asyncio.Task[None]] = {}

    def informer(self, resource: ApiResource) -> Informer:
        """Return the one informer of a resource."""
        informer = self._informers.get(resource)
        if informer is None:
            informer = self._informers[resource] = Informer(self.api, resource)
            self._start(informer)
        return informer

    def _start(self, informer: Informer) -> None:
        if self._running is not None and informer.resource not in self._tasks:
            self._tasks[informer.resource] = self._running.create_task(informer.run())

    def forget(self, resource: ApiResource) -> None:
        """Stop following a resource that is served no more."""
        self._informers.pop(resource, None)
        task = self._tasks.pop(resource, None)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """Run the informers and the recorder until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._running = group
            for informer in self._informers.values():
                self._start(informer)
            group.create_task(self.recorder.run())

    async def create(self, resource: ApiResource, body: Object, in_namespace: str = "") -> Object:
        """Create an object; the informer knows it before this returns. Raises ApiError."""
        result = await self.api.create(resource, body, in_namespace)
        if informer := self._informers.get(resource):
            informer.observe(result)
        return result

    async def patch(
        self, resource: ApiResource, obj: Object, change: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Merge-patch an object; the informer knows the result before this returns. Raises ApiError."""
        result = await self.api.patch(resource, name(obj), change, namespace(obj), subresource)
        if informer := self._informers.get(resource):
            informer.observe(result)
        return result

    async def write_status(self, resource: ApiResource, obj: Object, wanted: Mapping[str, Any]) -> None:
        """Patch those fields of the status that differ; None removes a field. Raises ApiError."""
        have = objects.status(obj)
        change = {key: value for key, value in wanted.items() if have.get(key) != value}
        if change:
            await self.patch(resource, obj, {"status": change}, "status")

    async def delete(self, resource: ApiResource, obj: Object, grace_seconds: int | None = None) -> None:
        """Delete an object, or find it gone; the informer shows it as being deleted. Raises ApiError."""
        with ignoring(NOT_FOUND):
            await self.api.delete(resource, name(obj), namespace(obj), grace_seconds)
        if informer := self._informers.get(resource):
            informer.observe_deletion(obj, objects.timestamp())


class QueueController(Generic[K]):
    """A reconciler: handlers add keys to the queue, ``sync`` makes one key's world right.

    Attributes:
        name: As logs name it.
        component: As its events name it; ``<name>-controller`` if empty.
        watches: The resources that must be known before the first ``sync``.
    """

    name = "controller"
    component = ""
    watches: tuple[ApiResource, ...] = ()
    workers = 4

    def __init__(self, cluster: ControllerManager) -> None:
        """Register the handlers."""
        self.cluster = cluster
        self.queue: WorkQueue[K] = WorkQueue()

    async def sync(self, key: K) -> None:
        """Make one key's world right. Errors bring the key back later."""
        raise NotImplementedError

    def event(self, obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event in this controller's name."""
        component = self.component or f"{self.name}-controller"
        self.cluster.recorder.record(objects.reference(obj), reason, message, component=component, warning=warning)

    async def create_pod(self, owner: Object, body: Object) -> None:
        """Create a pod of an owner and record that. Raises what the API raises, recorded as well."""
        try:
            pod = await self.cluster.create(PODS, body, namespace(owner))
        except Exception as error:
            why = error.message if isinstance(error, ApiError) else error
            self.event(owner, "FailedCreate", f"Error creating: {why}", warning=True)
            raise
        self.event(owner, "SuccessfulCreate", f"Created pod: {name(pod)}")

    async def delete_pod(self, owner: Object, pod: Object) -> None:
        """Delete a pod of an owner and record that."""
        await self.cluster.delete(PODS, pod)
        self.event(owner, "SuccessfulDelete", f"Deleted pod: {name(pod)}")

    async def run(self) -> None:
        """Work until cancelled."""
        for resource in self.watches:
            await self.cluster.informer(resource).wait_for_sync()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            end_if_cancelled()
            key = await self.queue.get()
            failed = True
            try:
                await self.sync(key)
                failed = False
            except ApiError as refusal:
                level = logging.DEBUG if refusal.code in {NOT_FOUND, CONFLICT} else logging.WARNING
                _log.log(level, "%s %s: %s", self.name, key, refusal)
            except Exception:  # noqa: BLE001  one key's trouble must not end the controller
                _log.exception("%s %s failed; it is tried again", self.name, key)
            finally:
                self.queue.done(key, failed=failed)


async def supervise(run: Callable[[], Awaitable[None]], title: str) -> None:
    """Run until cancelled; after an error, log it and run again."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001  nothing may end the process that holds the sandbox
            end_if_cancelled()
            _log.exception("%s failed; it is started again", title)
        await asyncio.sleep(_RESTART_SECONDS)


async def gather_all(works: Iterable[Awaitable[Any]]) -> None:
    """Await all, at most 32 at the same time; then raise the first error, if any."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def run_one(work: Awaitable[Any]) -> None:
        async with gate:
            await work

    all_works = list(works)
    try:
        results = await asyncio.gather(*map(run_one, all_works), return_exceptions=True)
    finally:  # a coroutine that is cancelled before it began would warn that it was never awaited
        for work in filter(asyncio.iscoroutine, all_works):
            work.close()
    for error in results:
        if isinstance(error, BaseException):
            raise error
