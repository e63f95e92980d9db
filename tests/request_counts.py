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


def count_requests(requests: Iterable[LoggedRequest]) -> Counter[str]:
    """Count requests, such as ``patch nodes``; a dry run has the verb ``try``; other paths are counted as paths."""
    return Counter(_describe(request) for request in requests)


def _describe(request: LoggedRequest) -> str:
    match = _PATH.fullmatch(request.path)
    if match is None:
        return f"get {request.path}"
    if request.verb == "DELETE" and not match["name"]:
        return f"deletecollection {match['kind']}"
    verb = "try" if request.dry_run else _VERBS.get(request.verb) or _read_verb(match["name"], request.query)
    return f"{verb} {match['kind']}{match['part'] or ''}"


def _read_verb(name: str | None, query: str) -> str:
    if parse_qs(query).get("watch", ["false"])[0] in {"true", "1", "True"}:
        return "watch"
    return "get" if name else "list"
