"""The informer: live copies of a few kinds of objects, kept current by list and watch."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from gpu_provision.kube.client import KINDS, Keep, KubeClient, ObjectList
from gpu_provision.kube.errors import ExpiredError, UnavailableError
from gpu_provision.kube.retry import QUIET_SECONDS
from gpu_provision.kube.transport import LOG, WatchEvent, WatchStream
from gpu_provision.kube.trim import is_same, keep_all
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError, UnreachableError

_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_RESTARTS = 5  # of one watch that fails on a mistake of this program before it took any event


class Scope(NamedTuple):
    """What one watch follows: a kind, by labels and fields, in one namespace or, without a name, in all of them."""

    kind: Kind
    label_selector: str = ""
    field_selector: str = ""
    namespace: str = ""

    @property
    def list_options(self) -> dict[str, Any]:
        """The arguments of `KubeClient.list` and `KubeClient.watch` besides the kind."""
        return {key: value for key, value in self._asdict().items() if key != "kind"}


def scope_of_object(ref: ObjectRef) -> Scope:
    """Return the scope of one object."""
    place = f",metadata.namespace={ref.namespace}" if ref.namespace else ""
    return Scope(ref.type, field_selector=f"metadata.name={ref.name}{place}")


@dataclass(slots=True, eq=False)
class _ScopeCache:
    """The copies of one scope, and how its watch goes."""

    scope: Scope
    objects: dict[ObjectRef, Manifest] = field(default_factory=dict)
    stream: WatchStream | None = None
    version: str = ""  # where the watch resumes; empty to list again
    failures: int = 0  # how often the watch ended before it brought an event
    silent_since: float | None = None  # when the API server stopped to answer; None while it does
    problem: str = ""  # why the copies may be out of date
    is_over: bool = False  # whether the scope is followed no longer

    def backoff(self) -> float:
        """Exponential with full jitter, so that not all watches are opened at once after a restart of the server."""
        longest = min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** min(self.failures, 10))
        return random.uniform(0.0, longest)  # noqa: S311 - no secret

    def end(self) -> None:
        """Follow the scope no longer; its thread ends."""
        self.is_over = True
        if self.stream:
            self.stream.close()


@dataclass(slots=True, eq=False)
class _Signal:
    """Wakes the readers; ``version`` counts what they are woken for."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 0
    failure: Exception | None = None


class InformerCache:
    """The live objects of some scopes. Read it from one thread; its own threads keep it current."""

    def __init__(
        self,
        cluster: KubeClient,
        scopes: Sequence[Scope],
        *,
        patience: float | None = None,
        keep: Keep = keep_all,
        listed: MutableMapping[Kind, ObjectList] | None = None,
    ) -> None:
        """Prepare.

        Args:
            listed: What was listed of some scopes already, as it is held: taken from there, and followed from then on.
            patience: For how many seconds a watch is opened again in vain; by default as requests are repeated.
            keep: What to hold of each object. A change of nothing that is held wakes no reader.
        """
        self._cluster, self._scopes, self._keep = cluster, scopes, keep
        self._listed = {} if listed is None else listed
        self._retry_seconds = cluster.retry_seconds if patience is None else patience
        self._watched = {scope: _ScopeCache(scope) for scope in scopes}
        self._signal, self._stopped = _Signal(), threading.Event()
        self._observed_version = -1
        self._own: tuple[Scope, ...] | None = None  # what a further reader has added

    @property
    def problem(self) -> str:
        """Why objects may be out of date: a watch failed on a mistake in this program and starts again; or empty."""
        return next((each.problem for each in list(self._watched.values()) if each.problem), "")

    @property
    def silence(self) -> float:
        """For how many seconds the API server has not answered; 0 if it does."""
        silent = [each.silent_since for each in list(self._watched.values()) if each.silent_since is not None]
        return time.monotonic() - min(silent) if silent else 0.0

    def __enter__(self) -> Self:
        """List every scope that was not listed yet, then follow all."""
        if self._own is None:
            self._begin(*self._watched.values())
        return self

    def __exit__(self, *_: object) -> None:
        """End all watches; of a further reader, those that it has added."""
        if self._own is not None:
            self.unwatch(*self._own)
            return
        self._stopped.set()
        for each in list(self._watched.values()):
            each.end()

    def watch(self, *scopes: Scope) -> None:
        """Follow more scopes from now on; those that are followed already are left as they are."""
        new = {scope: _ScopeCache(scope) for scope in scopes if scope not in self._watched}
        if self._own is not None:
            self._own += tuple(new)
        with self._signal.changed:
            self._watched |= new
        self._begin(*new.values())

    def unwatch(self, *scopes: Scope) -> None:
        """Follow scopes no longer."""
        with self._signal.changed:
            gone = [self._watched.pop(scope) for scope in scopes if scope in self._watched]
        for each in gone:
            each.end()

    def new_reader(self) -> InformerCache:
        """Return these copies for one more reader, in a thread of its own: a context that ends nothing but its part."""
        reader = copy.copy(self)
        reader._observed_version, reader._own = -1, ()  # noqa: SLF001 - of the same class
        return reader

    def _begin(self, *new: _ScopeCache) -> None:
        try:
            for watched in new:
                listing = self._listed.pop(watched.scope.kind, None)
                self._replace_objects(watched, listing or self._list(watched.scope))
        except ProvisionError:
            self.unwatch(*(watched.scope for watched in new))
            raise
        for watched in new:
            threading.Thread(target=self._follow, args=(watched,), name=str(watched.scope), daemon=True).start()

    def list(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the live objects of a scope, of a kind's first one; a copy, never changed afterwards."""
        with self._signal.changed:
            scope = what if isinstance(what, Scope) else next(each for each in self._scopes if each.kind == what)
            return dict(self._watched[scope].objects)

    def wait(self, seconds: float) -> bool:
        """Wait until something has changed since the last call, at most so long; say whether it has.

        Raises what ended a watch, such as UnreachableError after a long silence.
        """
        before, signal = self._observed_version, self._signal
        with signal.changed:
            if signal.failure is None and signal.version == before:
                signal.changed.wait(seconds)
            if signal.failure is not None:
                raise signal.failure
            self._observed_version = signal.version
        return self._observed_version != before

    def notify(self) -> None:
        """Make a current or the next `wait` return: something else has happened."""
        with self._signal.changed:
            self._signal.version += 1
            self._signal.changed.notify_all()

    def _list(self, scope: Scope, retry_seconds: float | None = None) -> ObjectList:
        return self._cluster.list(scope.kind, **scope.list_options, retry_seconds=retry_seconds, keep=self._keep)

    def _replace_objects(self, watched: _ScopeCache, listing: ObjectList) -> None:
        with self._signal.changed:
            watched.objects = {ref_of(item): item for item in listing.items}
            watched.version = listing.resource_version
        self.notify()

    def _follow(self, watched: _ScopeCache) -> None:
        """Watch a scope. A stream that breaks is resumed; only a version that is too old lists again."""
        while not (self._stopped.is_set() or watched.is_over):
            began, pause = time.monotonic(), 0.0
            try:
                self._watch(watched)
                pause = watched.backoff() if time.monotonic() - began < _PAUSE_SECONDS else 0.0
            except ExpiredError:
                watched.version, pause = "", watched.backoff()
            except UnreachableError as error:
                left = self._retry_seconds - self._silent_seconds(watched)
                if left < 0:
                    return self._fail(watched, error)
                asked = error.retry_after if isinstance(error, UnavailableError) else 0.0
                pause = min(left, max(asked, watched.backoff()))
            except ProvisionError as error:
                return self._fail(watched, error)
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave the copies as they are
                if watched.failures >= _RESTARTS:
                    return self._fail(watched, error)
                plural = KINDS[watched.scope.kind]
                watched.problem = f"the watch of {plural} starts again after {type(error).__name__}: {error}"
                LOG.error("%s", watched.problem, exc_info=error)
                self.notify()
                watched.version, pause = "", watched.backoff()
            watched.failures += 1
            self._stopped.wait(pause)
        return None

    def _watch(self, watched: _ScopeCache) -> None:
        if not watched.version:
            self._replace_objects(watched, self._list(watched.scope, retry_seconds=0.0))
        watched.stream = self._cluster.watch(watched.scope.kind, watched.version, **watched.scope.list_options)
        if self._stopped.is_set() or watched.is_over:
            watched.stream.close()
        watched.silent_since = None
        for event in watched.stream:
            self._handle_event(watched, event)
            watched.version, watched.failures, watched.problem = event.version, 0, ""

    def _silent_seconds(self, watched: _ScopeCache) -> float:
        """Note that a watch is broken, report it from time to time, and return for how long that lasts."""
        if watched.silent_since is None:
            watched.silent_since = time.monotonic()
            self.notify()  # a reader may wait for something that cannot arrive now
        seconds = time.monotonic() - watched.silent_since
        if seconds > QUIET_SECONDS:
            left = max(0.0, self._retry_seconds - seconds)
            what = f"the API server has not answered for {seconds:.0f} s; trying for another {left:.0f} s"
            self._cluster.report_retry(f"{what} (WATCH {KINDS[watched.scope.kind]})")
        return seconds

    def _handle_event(self, watched: _ScopeCache, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        kind = watched.scope.kind
        item = {**self._keep(kind, event.object), "apiVersion": kind.api_version, "kind": kind.kind}
        ref = ref_of(item)
        with self._signal.changed:
            before = watched.objects.get(ref)
            if before is not None and _version(item) < _version(before):
                return  # of an object before the one that a write has returned since
            if event.type == "DELETED":
                watched.objects.pop(ref, None)
            else:
                watched.objects[ref] = item
        if event.type != "MODIFIED" or before is None or not is_same(before, item):
            self.notify()

    def record_write(self, item: Manifest) -> None:
        """Take in what the server returned to a write, if it is newer than what is there; its watch may be late."""
        ref = ref_of(item)
        kept = self._keep(ref.type, item)
        with self._signal.changed:
            for scope, watched in self._watched.items():
                known = watched.objects.get(ref)
                if _selects(scope, ref, kept) and (known is None or _version(known) < _version(kept)):
                    watched.objects[ref] = kept
        self.notify()

    def _fail(self, watched: _ScopeCache, error: Exception) -> None:
        if not (self._stopped.is_set() or watched.is_over):
            self._signal.failure = error
            self.notify()


def _selects(scope: Scope, ref: ObjectRef, item: Manifest) -> bool:
    """Whether a scope follows an object, as far as this module reads selectors: nothing, or one equality."""
    key, _, value = scope.label_selector.partition("=")
    labels = item["metadata"].get("labels") or {}
    is_there = scope.kind == ref.type and scope.namespace in {"", ref.namespace}
    return is_there and not scope.field_selector and (not key or labels.get(key) == value)


def _version(item: Manifest) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
