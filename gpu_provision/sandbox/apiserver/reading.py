"""Lists and watches over a selection of objects, the same for HTTP and in process."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from gpu_provision.sandbox.apiserver.conversion import served
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.selectors import Matches, exact, predicate
from gpu_provision.sandbox.apiserver.status import StatusError, bad_request, expired_page, too_large_version
from gpu_provision.sandbox.apiserver.store import FIRST, PODS, Change, Item, Key, Store

BOOKMARK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource; an empty namespace means all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


class Page(NamedTuple):
    """Part of a list; ``remaining`` counts what follows, if that is known; ``next`` is the token for it."""

    items: list[Item]
    version: int
    next: str = ""
    remaining: int | None = None


class Event(NamedTuple):
    """ADDED, MODIFIED, DELETED or, without an item, BOOKMARK."""

    type: str
    item: Item | None
    version: int


def listed(store: Store, info: ResourceInfo, selection: Selection) -> list[Item]:
    """Return the selected objects by namespace and name. Raises StatusError 400 for a bad selector."""
    return list(_selected(store, info, selection, FIRST))


def _selected(store: Store, info: ResourceInfo, selection: Selection, after: Key) -> Iterator[Item]:
    matches = predicate(selection.labels, selection.fields, info.storage)
    node = exact(selection.fields, "spec.nodeName") if info.storage == PODS else ""
    name = exact(selection.fields, "metadata.name")
    if name and (selection.namespace or not info.namespaced):
        item = store.get(info.storage, name, selection.namespace)
        items = [item] if item and _key(item) > after else []
    else:
        items = store.select(info.storage, selection.namespace, node, after)
    return (served(item, info) for item in items if matches is None or matches(item.object))


def page(store: Store, info: ResourceInfo, selection: Selection, limit: int, token: str) -> Page:
    """Return one page of a list. Raises StatusError 400 for a token that is not ours, 410 for one that has expired.

    Later pages show objects as they are then; the version stays that of the first page, so a watch from it misses
    nothing. As with Kubernetes, what remains is not counted for a selector.
    """
    version, start = store.version, FIRST
    if token:
        version, start = _decoded(token)
        if version < store.oldest:
            raise expired_page(_encoded(store.version, start))
    items = _selected(store, info, selection, start)
    chosen = list(islice(items, limit or None))
    following = next(items, None)
    if following is None:
        return Page(chosen, version)
    is_counted = not (selection.labels or selection.fields)
    remaining = 1 + sum(1 for _ in items) if is_counted else None
    return Page(chosen, version, _encoded(version, _key(chosen[-1])), remaining)


def _encoded(version: int, start: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *start]).encode()).decode()


def _key(item: Item) -> Key:
    metadata = item.object["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _decoded(token: str) -> tuple[int, Key]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        message = "continue key is not valid"
        raise bad_request(message) from error


def parsed_version(text: str) -> int:
    """Read a resourceVersion; empty is 0. Raises StatusError 400."""
    if not text:
        return 0
    if not text.isdigit():
        message = f'invalid resource version "{text}"'
        raise bad_request(message)
    return int(text)


class Watch:
    """A watch over a selection: batches of events from ``version`` on, or from the present state if it is 0."""

    def __init__(self, store: Store, info: ResourceInfo, selection: Selection, version: int) -> None:
        """Raises StatusError 400 for a bad selector, 410 or 504 for a version out of reach."""
        self._store, self._info, self._selection = store, info, selection
        self._matches = predicate(selection.labels, selection.fields, info.storage)
        if version > store.version:
            raise too_large_version(version, store.version)
        self._initial = [] if version else listed(store, info, selection)
        self.version = version or store.version
        self._history = store.history(info.storage)
        self._history.since(self.version)
        self.beat = BOOKMARK_SECONDS

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Yield events, and one BOOKMARK after every ``beat`` seconds of silence. Raises StatusError 410."""
        if events := self.initial():
            yield events
        with self._history.cursor(self.version) as cursor:
            while True:
                changes = await cursor.next(self.beat)
                if not changes:
                    cursor.version = self._store.version
                    yield [Event("BOOKMARK", None, cursor.version)]
                else:
                    yield list(self._events(changes))

    def initial(self) -> list[Event]:
        """Return the events for what was there at the start; once."""
        items, self._initial = self._initial, []
        return [Event("ADDED", item, item.version) for item in items]

    def _events(self, changes: Iterable[Change]) -> Iterable[Event]:
        namespace, matches = self._selection.namespace, self._matches
        for change in changes:
            if namespace and change.item.object["metadata"].get("namespace") != namespace:
                continue
            kind = change.type if matches is None else _seen_as(change, matches)
            if kind:
                item = _last_seen(change) if kind == "DELETED" else change.item
                yield Event(kind, served(item, self._info), change.version)


def _seen_as(change: Change, matches: Matches) -> str:
    """Return the type of a change for somebody who sees only what matches; empty if it is none of his."""
    after = matches(change.item.object)
    if change.type != "MODIFIED" or change.before is None:
        return change.type if after else ""
    before = matches(change.before.object)
    match before, after:
        case True, True:
            return "MODIFIED"
        case True, False:
            return "DELETED"
        case False, True:
            return "ADDED"
    return ""


def _last_seen(change: Change) -> Item:
    """Return an object that left a selection as it was within it, under the version with which it left."""
    if change.type == "DELETED" or change.before is None:
        return change.item
    before = change.before.object
    metadata = {**before["metadata"], "resourceVersion": str(change.version)}
    return Item({**before, "metadata": metadata}, change.version)


def checked_initial_events(query: dict[str, str]) -> bool:
    """Say whether a watch asks for its initial events in the stream. Raises StatusError 422 for half a request."""
    if query.get("sendInitialEvents") is None:
        return False
    if query.get("resourceVersionMatch") != "NotOlderThan":
        message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise StatusError(
            422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {message}'
        )
    return query["sendInitialEvents"] == "true"
