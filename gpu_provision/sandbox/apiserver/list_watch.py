"""Lists and watches with label and field selectors, in process and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, refuse, refuse_options
from gpu_provision.sandbox.apiserver.registry import to_served
from gpu_provision.sandbox.apiserver.request import Request, StreamResponse
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import FIRST, PODS, ChangeRecord, Store, StoredObject
from gpu_provision.sandbox.apiserver.tables import output_form, render_object
from gpu_provision.sandbox.objects import Key, key_of, matches_operator, to_json, value_at

BOOKMARK_SECONDS = 15.0
_MIN_WATCH_SECONDS = 1800
Matches = Callable[[Object], bool]
_REQUIREMENT = re.compile(
    r"""(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)
        (?: \s*(?P<compare>==|!=|=|>|<)\s*(?P<value>[^\s!=<>(),]*)
          | \s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\) )?""",
    re.VERBOSE,
)
_TERM = re.compile(r"([\w.]+)\s*(==|!=|=)\s*(.*)")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


@dataclass(frozen=True, slots=True)
class Selection:
    """The namespace and selectors of a list or watch; an empty namespace means all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @classmethod
    def from_request(cls, request: Request) -> Selection:
        """Return the selection of a request's path and query."""
        query = request.query
        return cls(request.target.namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))


class Page(NamedTuple):
    """A page of a list; ``next`` is its continue token."""

    items: list[StoredObject]
    version: int
    next: str = ""


def list_items(store: Store, info: ResourceInfo, selection: Selection) -> list[StoredObject]:
    """Return the selected objects, sorted by namespace and name. Raises StatusError 400 for a bad selector."""
    return list(_select(store, info, selection, FIRST))


def _select(store: Store, info: ResourceInfo, selection: Selection, after: Key) -> Iterator[StoredObject]:
    matches = build_predicate(selection.labels, selection.fields, info)
    node = required_value(selection.fields, "spec.nodeName") if info.storage == PODS else ""
    name = required_value(selection.fields, "metadata.name")
    if name and (selection.namespace or not info.namespaced):
        item = store.get(info.storage, name, selection.namespace)
        items = [item] if item and key_of(item.object) > after else []
    else:
        items = store.select(info.storage, selection.namespace, node, after)
    return (to_served(item, info) for item in items if matches is None or matches(item.object))


def list_page(store: Store, info: ResourceInfo, selection: Selection, limit: int, token: str) -> Page:
    """Return one page of a list. Raises StatusError 400 for an unknown token, 410 for an expired one.

    Later pages show newer objects under the version of the first page, so a watch from that version misses nothing.
    """
    version, start = store.version, FIRST
    if token:
        version, start = _decode_token(token)
        if version < store.oldest:
            metadata = {"continue": _encode_token(store.version, start)}
            raise StatusError(410, "Expired", _EXPIRED, metadata=metadata)
    items = _select(store, info, selection, start)
    chosen = list(islice(items, limit or None))
    follows = next(items, None) is not None
    return Page(chosen, version, _encode_token(version, key_of(chosen[-1].object)) if follows else "")


def _encode_token(version: int, start: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *start]).encode()).decode()


def _decode_token(token: str) -> tuple[int, Key]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError):
        refuse("continue key is not valid")


def parse_resource_version(text: str) -> int:
    """Read a resourceVersion; empty is 0. Raises StatusError 400."""
    if text and not text.isdigit():
        refuse(f'invalid resource version "{text}"')
    return int(text or 0)


class StreamEvent(NamedTuple):
    """ADDED, MODIFIED, DELETED or, without an item, BOOKMARK."""

    type: str
    item: StoredObject | None
    version: int


class SelectionWatch:
    """A watch over a selection: batches of events after ``version``; 0 starts with the present objects."""

    def __init__(self, store: Store, info: ResourceInfo, selection: Selection, version: int) -> None:
        """Raises StatusError 400 for a bad selector."""
        self._store, self._info, self._namespace = store, info, selection.namespace
        self._matches = build_predicate(selection.labels, selection.fields, info)
        self._initial = [] if version else list_items(store, info, selection)
        self.version = version or store.version
        self._cache = store.watch_cache(info.storage)
        self.bookmark_seconds = BOOKMARK_SECONDS

    async def batches(self) -> AsyncIterator[list[StreamEvent]]:
        """Yield events, and a BOOKMARK after every ``bookmark_seconds`` of silence. Raises StatusError 410."""
        if events := self.initial_events():
            yield events
        while True:
            if changes := await self._cache.wait_for_changes(self.version, self.bookmark_seconds):
                self.version = changes[-1].version
                yield list(self._events(changes))
            else:
                self.version = self._store.version
                yield [StreamEvent("BOOKMARK", None, self.version)]

    def initial_events(self) -> list[StreamEvent]:
        """Return the events for the objects at the start, once."""
        items, self._initial = self._initial, []
        return [StreamEvent("ADDED", item, item.version) for item in items]

    def _events(self, changes: Iterable[ChangeRecord]) -> Iterable[StreamEvent]:
        namespace, matches = self._namespace, self._matches
        for change in changes:
            if namespace and change.item.object["metadata"].get("namespace") != namespace:
                continue
            kind = change.type if matches is None else _type_in_selection(change, matches)
            if kind:
                item = _last_state(change) if kind == "DELETED" else change.item
                yield StreamEvent(kind, to_served(item, self._info), change.version)


def _type_in_selection(change: ChangeRecord, matches: Matches) -> str:
    """Return the type of a change within a selection; empty if the change is outside of it."""
    after = matches(change.item.object)
    if change.type != "MODIFIED" or change.before is None:
        return change.type if after else ""
    if matches(change.before.object):
        return "MODIFIED" if after else "DELETED"
    return "ADDED" if after else ""


def _last_state(change: ChangeRecord) -> StoredObject:
    """Return the last state of an object within a selection, with the version of the change that removed it."""
    if change.type == "DELETED" or change.before is None:
        return change.item
    before = change.before.object
    metadata = {**before["metadata"], "resourceVersion": str(change.version)}
    return StoredObject({**before, "metadata": metadata}, change.version)


def start_watch(store: Store, request: Request) -> StreamResponse:
    """Answer a watch request with a stream. Raises StatusError 400 or 422."""
    initial = request.flag("sendInitialEvents")
    version = parse_resource_version(request.query.get("resourceVersion", ""))
    if "sendInitialEvents" in request.query and request.query.get("resourceVersionMatch") != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        refuse_options(f"resourceVersionMatch: Forbidden: {why}", "ListOptions")
    watch = SelectionWatch(store, request.info, Selection.from_request(request), 0 if initial else version)
    seconds = request.number("timeoutSeconds") or _MIN_WATCH_SECONDS + secrets.randbelow(_MIN_WATCH_SECONDS)
    return StreamResponse(_write_lines(request, watch, seconds, bookmark_first=initial))


async def _write_lines(
    request: Request, watch: SelectionWatch, seconds: float, *, bookmark_first: bool
) -> AsyncIterator[bytes]:
    """Yield lines until the timeout; an expired watch ends with an ERROR event."""
    loop, info, form = asyncio.get_running_loop(), request.info, output_form(request)
    with_bookmarks, deadline = request.flag("allowWatchBookmarks"), loop.time() + seconds

    def write(event: StreamEvent) -> bytes:
        if event.item is not None:
            return _line(event.type, render_object(event.item, info, form))
        return bookmark(event.version) if with_bookmarks else b""

    def bookmark(version: int, annotations: Object | None = None) -> bytes:
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        metadata |= {"annotations": annotations} if annotations else {}
        obj = {"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata}
        table = form if form.kind == "Table" else form._replace(kind="Object")
        return _line("BOOKMARK", render_object(StoredObject(obj, version), info, table))

    watch.bookmark_seconds = min(BOOKMARK_SECONDS, seconds)
    if bookmark_first:
        for event in watch.initial_events():
            yield write(event)
        yield bookmark(watch.version, {"k8s.io/initial-events-end": "true"})
    try:
        async for events in watch.batches():
            yield b"".join(map(write, events))
            if loop.time() >= deadline:
                return
            watch.bookmark_seconds = min(BOOKMARK_SECONDS, deadline - loop.time())
    except StatusError as error:
        yield _line("ERROR", to_json(error.status()))


def _line(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


def _split(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _label_test(part: str) -> Matches:
    match = _REQUIREMENT.fullmatch(part)
    if not match or (match["absent"] and (match["compare"] or match["set"])):
        refuse(f"unable to parse requirement: {part!r} is no label selector")
    key, operator = match["key"], _OPERATORS.get(match["compare"] or match["set"] or "", "Exists")
    texts = match["values"].split(",") if match["set"] else [match["value"]] if match["compare"] else []
    values = frozenset(text.strip() for text in texts)
    if not _KEY.fullmatch(key):
        refuse(f"unable to parse requirement: invalid label key {key!r}")
    if operator in ("Gt", "Lt") and not all(re.fullmatch(r"-?\d+", value) for value in values):
        refuse("unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer")
    if wrong := next((value for value in values if not _VALUE.fullmatch(value)), ""):
        refuse(f"unable to parse requirement: invalid label value: {wrong!r}")
    operator = "DoesNotExist" if match["absent"] else operator
    return lambda obj: matches_operator(operator, (obj["metadata"].get("labels") or {}).get(key), values)


def _field_test(part: str, info: ResourceInfo) -> Matches:
    """Return the predicate of one term of a field selector. Raises StatusError 400 for an unsupported field."""
    match = _TERM.fullmatch(part)
    if not match:
        refuse(f"invalid selector: '{part}'; can't understand '{part}'")
    field, operator, value = match.groups()
    if field not in ("metadata.name", "metadata.namespace", *info.fields):
        known = f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        refuse(f"field label not supported: {field}" if info.fields else known)
    return lambda obj: (_field_text(obj, field) == value) is (operator != "!=")


def _field_text(obj: Object, field: str) -> str:
    """Return a field as text for selectors, empty if missing."""
    value = value_at(obj, *field.split("."))
    if field == "source" and isinstance(value, dict):
        value = value.get("component")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "false" if field in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value)


def required_value(field_selector: str, field: str) -> str:
    """Return the value that a field selector requires for ``field``; empty if it requires none."""
    terms = (_TERM.fullmatch(part) for part in _split(field_selector))
    return next((term[3] for term in terms if term and term[1] == field and term[2] != "!="), "")


def build_predicate(label_selector: str, field_selector: str, info: ResourceInfo) -> Matches | None:
    """Return the predicate of both selectors, None if everything matches. Raises StatusError 400."""
    tests = [_label_test(part) for part in _split(label_selector)]
    tests += [_field_test(part, info) for part in _split(field_selector)]
    return (lambda obj: all(test(obj) for test in tests)) if tests else None
