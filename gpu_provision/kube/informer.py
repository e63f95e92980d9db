"""Live copies of a few kinds of objects, kept current by one watch per kind."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Self

from gpu_provision.kube.client import Cluster, Keep, ObjectList
from gpu_provision.kube.errors import ExpiredError, UnavailableError
from gpu_provision.kube.resources import KINDS
from gpu_provision.kube.retry import QUIET_SECONDS
from gpu_provision.kube.transport import LOG
from gpu_provision.kube.trim import is_same, whole
from gpu_provision.kube.watch import WatchEvent, WatchStream
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError, Unreachable

_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_RESTARTS = 5  # of one watch that fails on a mistake of this program before it took any event
_REMEMBERED = 4_000  # changes of a scope; a reader that is further behind reads all of its objects


class Scope(NamedTuple):
    """What one watch follows: a kind, by labels and fields, in one namespace or, without a name, in all of them."""

    kind: Kind
    label_selector: str = ""
    field_selector: str = ""
    namespace: str = ""


class News(NamedTuple):
    """The changes of a scope since a reader has read it last.

    Attributes:
        upto: Where the reader goes on next time.
        objects: What has changed, None for an object that is gone; all that there is if ``is_whole``.
        is_whole: Whether these are all objects, and every other one is gone.
    """

    upto: int
    objects: Mapping[ObjectRef, Manifest | None]
    is_whole: bool


@dataclass(slots=True)
class _Journal:
    """The references of the last changes of a scope; ``total`` counts all changes."""

    total: int = 0
    refs: deque[ObjectRef] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add(self, ref: ObjectRef) -> None:
        self.total += 1
        self.refs.append(ref)

    def begin_again(self) -> None:
        """Note that any object may have changed."""
        self.total += 1
        self.refs.clear()

    def since(self, seen: int) -> Iterable[ObjectRef] | None:
        """Return the references of what has changed since then; None if any object may have."""
        count = self.total - seen
        return islice(reversed(self.refs), count) if 0 <= count <= len(self.refs) else None


class Mirror:
    """The live objects of some scopes. Read it from one thread; its own threads keep it current."""

    def __init__(
        self,
        cluster: Cluster,
        scopes: Sequence[Scope],
        *,
        patience: float | None = None,
        keep: Keep = whole,
        listed: MutableMapping[Kind, ObjectList] | None = None,
    ) -> None:
        """Prepare.

        Args:
            listed: What was listed of some scopes already, as it is held: taken from there, and followed from then on.
            patience: For how many seconds a watch is opened again in vain; by default as requests are repeated.
            keep: What to hold of each object. A change of nothing that is held wakes nobody.
        """
        self._cluster, self._scopes, self._keep = cluster, scopes, keep
        self._listed = {} if listed is None else listed
        self._patience = cluster.retry_seconds if patience is None else patience
        self._objects: dict[Scope, dict[ObjectRef, Manifest]] = {scope: {} for scope in scopes}
        self._journals = {scope: _Journal() for scope in scopes}
        self._streams: dict[Scope, WatchStream] = {}
        self._wanted: dict[Scope, object] = {}
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._version, self._seen = 0, -1
        self._failure: Exception | None = None
        self._silent: dict[Scope, float] = {}
        self._problems: dict[Scope, str] = {}

    @property
    def problem(self) -> str:
        """Why objects may be out of date: a watch failed on a mistake in this program and starts again; or empty."""
        return next(iter(list(self._problems.values())), "")

    @property
    def silence(self) -> float:
        """For how many seconds the API server has not answered; 0 if it does."""
        silent = list(self._silent.values())
        return time.monotonic() - min(silent) if silent else 0.0

    def __enter__(self) -> Self:
        """List every scope that was not listed yet, then follow all."""
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
                for known in (self._wanted, self._objects, self._journals, self._silent):
                    known.pop(scope, None)
        for stream in filter(None, [self._streams.pop(scope, None) for scope in scopes]):
            stream.close()

    def shared(self) -> Mirror:
        """Return these copies for one more reader, in a thread of its own: a context that ends nothing but its part."""
        return _Shared(self)

    def _begin(self, scopes: Sequence[Scope]) -> None:
        self._wanted |= {scope: object() for scope in scopes}
        try:
            versions = [self._first(scope) for scope in scopes]
        except ProvisionError:
            self.forget(*scopes)
            raise
        for scope, version in zip(scopes, versions, strict=True):
            arguments = (scope, version, self._wanted[scope])
            worker = threading.Thread(target=self._follow, args=arguments, name=str(scope), daemon=True)
            worker.start()

    def __exit__(self, *_: object) -> None:
        """End all watches."""
        self._stopped.set()
        for stream in list(self._streams.values()):
            stream.close()

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the live objects of a scope, of a kind's first one; a copy, never changed afterwards."""
        with self._changed:
            return dict(self._objects[self._scope(what)])

    def since(self, what: Kind | Scope, seen: int) -> News:
        """Return what has changed since ``News.upto`` of an earlier call; everything for a negative number."""
        with self._changed:
            scope = self._scope(what)
            objects, journal = self._objects[scope], self._journals.get(scope, _Journal())
            changed = journal.since(seen)
            if changed is None:
                return News(journal.total, dict(objects), is_whole=True)
            return News(journal.total, {ref: objects.get(ref) for ref in changed}, is_whole=False)

    def _scope(self, what: Kind | Scope) -> Scope:
        return what if isinstance(what, Scope) else next(each for each in self._scopes if each.kind == what)

    def wait(self, seconds: float) -> bool:
        """Wait until something has changed since the last call, at most so long; say whether it has.

        Raises:
            ProvisionError: The API server did not answer for too long, or refuses the watch.
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

    def _first(self, scope: Scope) -> str:
        """Return the version from which to follow a scope."""
        listing = self._listed.pop(scope.kind, None)
        return self._hold(scope, listing) if listing else self._relist(scope)

    def _relist(self, scope: Scope, retry_seconds: float | None = None) -> str:
        listing = self._cluster.list(
            scope.kind,
            namespace=scope.namespace,
            label_selector=scope.label_selector,
            field_selector=scope.field_selector,
            retry_seconds=retry_seconds,
            keep=self._keep,
        )
        return self._hold(scope, listing)

    def _hold(self, scope: Scope, listing: ObjectList) -> str:
        with self._changed:
            if scope in self._wanted:
                self._objects[scope] = {ref_of(item): item for item in listing.items}
                self._journals.setdefault(scope, _Journal()).begin_again()
        self.wake()
        return listing.resource_version

    def _follow(self, scope: Scope, version: str, wanted: object) -> None:
        """Watch from a version on. A stream that breaks is resumed; only a version that is too old lists again."""
        attempt = _Attempt(version)
        while not self._stopped.is_set() and self._wanted.get(scope) is wanted:
            began, pause = time.monotonic(), 0.0
            try:
                self._watch(scope, attempt)
                pause = attempt.backoff() if time.monotonic() - began < _PAUSE_SECONDS else 0.0
            except ExpiredError:
                attempt.version, pause = "", attempt.backoff()
            except Unreachable as error:
                left = self._patience - self._silent_seconds(scope)
                if left < 0:
                    return self._fail(error)
                asked = error.retry_after if isinstance(error, UnavailableError) else 0.0
                pause = min(left, max(asked, attempt.backoff()))
            except ProvisionError as error:
                return self._fail(error)
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave the copies as they are
                if attempt.failures >= _RESTARTS:
                    return self._fail(error)
                self._note_problem(scope, error)
                attempt.version, pause = "", attempt.backoff()
            attempt.failures += 1
            self._stopped.wait(pause)
        return None

    def _watch(self, scope: Scope, attempt: _Attempt) -> None:
        attempt.version = attempt.version or self._relist(scope, retry_seconds=0.0)
        stream = self._open(scope, attempt.version)
        self._silent.pop(scope, None)
        for event in stream:
            self._take(scope, event)
            attempt.version, attempt.failures = event.version, 0
            self._problems.pop(scope, None)

    def _silent_seconds(self, scope: Scope) -> float:
        """Note that a watch is broken, report it from time to time, and return for how long that lasts."""
        if scope not in self._silent:
            self.wake()  # a reader may wait for something that cannot arrive now
        seconds = time.monotonic() - self._silent.setdefault(scope, time.monotonic())
        if seconds > QUIET_SECONDS:
            left = max(0.0, self._patience - seconds)
            what = f"the API server has not answered for {seconds:.0f} s; trying for another {left:.0f} s"
            self._cluster.report(f"{what} (WATCH {KINDS[scope.kind]})")
        return seconds

    def _note_problem(self, scope: Scope, error: Exception) -> None:
        self._problems[scope] = f"the watch of {KINDS[scope.kind]} starts again after {type(error).__name__}: {error}"
        LOG.error("%s", self._problems[scope], exc_info=error)
        self.wake()

    def _open(self, scope: Scope, version: str) -> WatchStream:
        stream = self._cluster.watch(
            scope.kind,
            version,
            namespace=scope.namespace,
            label_selector=scope.label_selector,
            field_selector=scope.field_selector,
        )
        self._streams[scope] = stream
        if self._stopped.is_set() or scope not in self._wanted:
            stream.close()
        return stream

    def _take(self, scope: Scope, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        named = {"apiVersion": scope.kind.api_version, "kind": scope.kind.kind}
        item = {**self._keep(scope.kind, event.object), **named}
        ref = ref_of(item)
        with self._changed:
            if scope not in self._objects:
                return
            before = self._objects[scope].get(ref)
            if before is not None and _version(item) < _version(before):
                return  # of an object before the one that a write has returned since
            if event.type == "DELETED":
                self._objects[scope].pop(ref, None)
            else:
                self._objects[scope][ref] = item
            self._journals[scope].add(ref)
        if event.type != "MODIFIED" or before is None or not is_same(before, item):
            self.wake()

    def note(self, item: Manifest) -> None:
        """Take an object in that the server returned to a write: its watch may bring it later.

        An older version than what is there is left out; versions are numbers in every API server so far.
        """
        ref = ref_of(item)
        kept = self._keep(ref.type, item)
        with self._changed:
            for scope, objects in self._objects.items():
                if scope.kind == ref.type and _selects(scope, kept):
                    known = objects.get(ref)
                    if known is None or _version(known) < _version(kept):
                        objects[ref] = kept
                        self._journals[scope].add(ref)
        self.wake()

    def _fail(self, error: Exception) -> None:
        if self._stopped.is_set():
            return
        with self._changed:
            self._failure = error
        self.wake()


def _selects(scope: Scope, item: Manifest) -> bool:
    """Whether a scope follows an object, as far as this module reads selectors: nothing, or one equality."""
    key, _, value = scope.label_selector.partition("=")
    labels = item["metadata"].get("labels") or {}
    is_there = scope.namespace in {"", item["metadata"].get("namespace", "")}
    return is_there and not scope.field_selector and (not key or labels.get(key) == value)


def _version(item: Manifest) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


@dataclass(slots=True)
class _Attempt:
    """Where a watch resumes, and how often it ended before it brought an event."""

    version: str
    failures: int = 0

    def backoff(self) -> float:
        """Exponential with full jitter, so that not all watches are opened at once after a restart of the server."""
        longest = min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** min(self.failures, 10))
        return random.uniform(0.0, longest)  # noqa: S311 - no secret


class _Shared(Mirror):
    """A mirror that another one keeps current."""

    def __init__(self, kept: Mirror) -> None:
        self._kept, self._seen = kept, -1
        self._added: tuple[Scope, ...] = ()

    @property
    def silence(self) -> float:
        return self._kept.silence

    @property
    def problem(self) -> str:
        return self._kept.problem

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

    def since(self, what: Kind | Scope, seen: int) -> News:
        return self._kept.since(what, seen)

    def wake(self) -> None:
        self._kept.wake()

    def note(self, item: Manifest) -> None:
        self._kept.note(item)

    def _wait(self, seen: int, seconds: float) -> int:
        return self._kept._wait(seen, seconds)  # noqa: SLF001 - of the same class
