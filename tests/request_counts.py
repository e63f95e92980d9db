"""Requests counted by verb and kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from urllib.parse import parse_qs

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest

_PATH = re.compile(
    r"/(api/v1|apis/[^/]+/[^/]+)(/namespaces/[^/]+(?=/))?/(?P<kind>[^/]+)(/(?P<name>[^/]+)(?P<part>/.+)?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def by_verb_and_kind(requests: Iterable[LoggedRequest]) -> Counter[str]:
    """Count requests, such as ``patch nodes``; a dry run has the verb ``try``, other paths stand for themselves."""
    return Counter(_named(request) for request in requests)


def _named(request: LoggedRequest) -> str:
    found = _PATH.fullmatch(request.path)
    if found is None:
        return f"get {request.path}"
    if request.verb == "DELETE" and not found["name"]:
        return f"deletecollection {found['kind']}"
    verb = "try" if request.dry_run else _VERBS.get(request.verb) or _read(found["name"], request.query)
    return f"{verb} {found['kind']}{found['part'] or ''}"


def _read(name: str | None, query: str) -> str:
    if parse_qs(query).get("watch", ["false"])[0] in {"true", "1", "True"}:
        return "watch"
    return "get" if name else "list"
