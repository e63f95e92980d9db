"""Live copies of a few kinds of objects, kept current by one watch per kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, Self

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import Gone
from gpu_provision.cluster.slim import is_same
from gpu_provision.cluster.stream import WatchEvent, WatchStream
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError, Unreachable

_PAUSE_SECONDS = 1.0


class Scope(NamedTuple):
    """What one watch follows: a kind, in all namespaces, by labels and fields."""

    kind: Kind
    label_selector: str = ""
    field_selector: str = ""


class Mirror:
    """The live objects of some scopes. Read it from one thread; its own threads keep it current."""

    def __init__(
        self,
        cluster: Cluster,
        scopes: Sequence[Scope],
        *,
        patience: float,
        on_wait: Callable[[], None] = lambda: None,
        keep: Callable[[Manifest], Manifest] = lambda item: item,
    ) -> None:
        """Prepare.

        Args:
            patience: How many seconds of silence of the API server are borne.
            on_wait: Called every second that the first listing takes, by the thread that enters.
            keep: What to hold of each object. A change of nothing that is held wakes nobody.
        """
        self._cluster, self._scopes, self._patience, self._on_wait = cluster, scopes, patience, on_wait
        self._keep = keep
        self._objects: dict[Scope, dict[ObjectRef, Manifest]] = {scope: {} for scope in scopes}
        self._streams: dict[Scope, WatchStream] = {}
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._version, self._seen = 0, -1
        self._failure: ProvisionError | None = None
        self._silent: dict[Scope, float] = {}

    @property
    def silence(self) -> float:
        """For how many seconds the API server has not answered; 0 if it does."""
        silent = list(self._silent.values())
        return time.monotonic() - min(silent) if silent else 0.0

    def __enter__(self) -> Self:
        """List every scope, then follow it."""
        self._begin(self._scopes)
        return self

    def follow(self, *scopes: Scope) -> None:
        """Follow more scopes from now on; those that are followed already are left as they are."""
        new = [scope for scope in scopes if scope not in self._objects]
        self._begin(new)

    def _begin(self, scopes: Sequence[Scope]) -> None:
        with ThreadPoolExecutor(1) as pool:
            listing = pool.submit(lambda: [self._relist(scope, patience=None) for scope in scopes])
            while wait([listing], _PAUSE_SECONDS).not_done:
                self._on_wait()
        for scope, version in zip(scopes, listing.result(), strict=True):
            worker = threading.Thread(target=self._follow, args=(scope, version), name=str(scope), daemon=True)
            worker.start()

    def __exit__(self, *_: object) -> None:
        """End all watches."""
        self._stopped.set()
        for stream in list(self._streams.values()):
            stream.close()

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the live objects of a scope, of a kind's first one; a copy, never changed afterwards."""
        with self._changed:
            scope = what if isinstance(what, Scope) else next(each for each in self._scopes if each.kind == what)
            return dict(self._objects[scope])

    def wait(self, seconds: float) -> bool:
        """Wait until something has changed since the last call, at most so long; say whether it has.

        Raises:
            ProvisionError: The API server was silent for longer than our patience, or refuses us.
        """
        with self._changed:
            if self._failure is None and self._version == self._seen:
                self._changed.wait(seconds)
            if self._failure is not None:
                raise self._failure
            changed, self._seen = self._version != self._seen, self._version
            return changed

    def wake(self) -> None:
        """Make a current or the next `wait` return: something else has happened."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _relist(self, scope: Scope, patience: float | None = 0.0) -> str:
        listing = self._cluster.list(
            scope.kind,
            label_selector=scope.label_selector,
            field_selector=scope.field_selector,
            patience=patience,
            keep=self._keep,
        )
        with self._changed:
            self._objects[scope] = {ref_of(item): item for item in listing.items}
        self.wake()
        return listing.resource_version

    def _follow(self, scope: Scope, version: str) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                version = version or self._relist(scope)
                stream = self._open(scope, version)
                self._silent.pop(scope, None)
                for event in stream:
                    version = event.object["metadata"]["resourceVersion"]
                    self._take(scope, event)
            except Gone:
                version = ""
            except Unreachable as error:
                version = ""
                if scope not in self._silent:
                    self._silent[scope] = time.monotonic()
                    self.wake()  # so that the silence is told
                if time.monotonic() - self._silent[scope] > self._patience:
                    self._fail(error)
                    return
            except ProvisionError as error:
                self._fail(error)
                return
            if time.monotonic() - began < _PAUSE_SECONDS:
                self._stopped.wait(_PAUSE_SECONDS)  # whoever ends watches at once is not asked at once again

    def _open(self, scope: Scope, version: str) -> WatchStream:
        stream = self._cluster.watch(
            scope.kind, version, label_selector=scope.label_selector, field_selector=scope.field_selector
        )
        self._streams[scope] = stream
        if self._stopped.is_set():
            stream.close()
        return stream

    def _take(self, scope: Scope, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        ref, item = ref_of(event.object), self._keep(event.object)
        with self._changed:
            before = self._objects[scope].get(ref)
            if event.type == "DELETED":
                self._objects[scope].pop(ref, None)
            else:
                self._objects[scope][ref] = item
        if event.type != "MODIFIED" or before is None or not is_same(before, item):
            self.wake()

    def _fail(self, error: ProvisionError) -> None:
        if self._stopped.is_set():
            return
        with self._changed:
            self._failure = error
        self.wake()
