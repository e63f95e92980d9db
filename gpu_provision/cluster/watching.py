"""Live copies of a few kinds of objects, kept current by one watch per kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
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
        self._wanted: dict[Scope, object] = {}
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
        self._begin(self._unknown(scopes))

    def _unknown(self, scopes: Iterable[Scope]) -> tuple[Scope, ...]:
        return tuple(scope for scope in scopes if scope not in self._wanted)

    def forget(self, *scopes: Scope) -> None:
        """Follow scopes no longer."""
        with self._changed:
            for scope in scopes:
                for known in (self._wanted, self._objects, self._silent):
                    known.pop(scope, None)
        for stream in filter(None, [self._streams.pop(scope, None) for scope in scopes]):
            stream.close()

    def shared(self) -> Mirror:
        """Return these copies for one more reader, in a thread of its own: a context that ends nothing but its part."""
        return _Shared(self)

    def _begin(self, scopes: Sequence[Scope]) -> None:
        self._wanted |= {scope: object() for scope in scopes}
        try:
            versions = self._listed(scopes)
        except ProvisionError:
            self.forget(*scopes)
            raise
        for scope, version in zip(scopes, versions, strict=True):
            arguments = (scope, version, self._wanted[scope])
            worker = threading.Thread(target=self._follow, args=arguments, name=str(scope), daemon=True)
            worker.start()

    def _listed(self, scopes: Sequence[Scope]) -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            listing = pool.submit(lambda: [self._relist(scope, patience=None) for scope in scopes])
            while wait([listing], _PAUSE_SECONDS).not_done:
                self._on_wait()
        return listing.result()

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
        before, self._seen = self._seen, self._wait(self._seen, seconds)
        return self._seen != before

    def _wait(self, seen: int, seconds: float) -> int:
        """Return what counts changes, once it is no longer as seen."""
        with self._changed:
            if self._failure is None and self._version == seen:
                self._changed.wait(seconds)
            if self._failure is not None:
                raise self._failure
            return self._version

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
            if scope in self._wanted:
                self._objects[scope] = {ref_of(item): item for item in listing.items}
        self.wake()
        return listing.resource_version

    def _follow(self, scope: Scope, version: str, wanted: object) -> None:
        while not self._stopped.is_set() and self._wanted.get(scope) is wanted:
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
        if self._stopped.is_set() or scope not in self._wanted:
            stream.close()
        return stream

    def _take(self, scope: Scope, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        ref, item = ref_of(event.object), self._keep(event.object)
        with self._changed:
            if scope not in self._objects:
                return
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


class _Shared(Mirror):
    """A mirror that another one keeps current."""

    def __init__(self, kept: Mirror) -> None:
        self._kept, self._seen = kept, -1
        self._added: tuple[Scope, ...] = ()

    @property
    def silence(self) -> float:
        return self._kept.silence

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget(*self._added)

    def follow(self, *scopes: Scope) -> None:
        self._added += self._kept._unknown(scopes)  # noqa: SLF001 - of the same class
        self._kept.follow(*scopes)

    def forget(self, *scopes: Scope) -> None:
        self._kept.forget(*scopes)

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        return self._kept.of(what)

    def wake(self) -> None:
        self._kept.wake()

    def _wait(self, seen: int, seconds: float) -> int:
        return self._kept._wait(seen, seconds)  # noqa: SLF001 - of the same class
