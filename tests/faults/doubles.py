"""Objects that were created twice where once was enough, by what an API server says that it has carried out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_VERBS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
_PATH = re.compile(r"(/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/[^/]+(?=/))?/[^/]+)(?:/([^/]+))?(/.+)?")
_QUESTIONS = ("accessreviews", "rulesreviews", "subjectreviews", "tokenreviews")


class Write(NamedTuple):
    """A request that could change something, and the code of the server's answer; ``body`` is JSON or YAML."""

    verb: str
    path: str
    code: int
    body: bytes


def doubles(writes: Iterable[Write]) -> list[str]:
    """Return what was created once more, as often as it was, though nothing deleted it in between.

    Equal objects of one ``generateName`` count as one. So do Events with the same object, reason and message, unless
    in between the object had another Event or was written to: a stack that breaks twice says so twice.
    """
    found, made, last_events = list[str](), set[str](), dict[str, str]()
    for write in writes:
        match = _PATH.fullmatch(write.path)
        if not match or write.code >= HTTPStatus.BAD_REQUEST:
            continue
        collection, name, subresource = match.groups()
        if write.verb == "DELETE":
            made = {path for path in made if path != write.path and not path.startswith(f"{write.path}/")}
        if write.code != HTTPStatus.CREATED:
            last_events.pop(name, None)
        elif collection.endswith("/events"):
            about, event = _event(json.loads(write.body))
            found += [f"{collection}: {event}"] * (last_events.get(about) == event)
            last_events[about] = event
        elif not subresource and not collection.endswith(_QUESTIONS):
            path = f"{collection}/{name or _name(json.loads(write.body))}"
            found += [path] * (path in made)
            made.add(path)
    return found


def _name(body: dict[str, Any]) -> str:
    metadata = body["metadata"]
    return metadata.get("name") or metadata["generateName"] + json.dumps(body, sort_keys=True)


def _event(body: dict[str, Any]) -> tuple[str, str]:
    about = body.get("involvedObject", {})
    parts = (*(about.get(key, "") for key in ("kind", "namespace", "name", "uid")), body["reason"], body["message"])
    return about.get("name", ""), " ".join(parts)


def audited(log: Path, start: int, agent: str) -> Iterator[Write]:
    """Yield what an agent has created, and what was deleted by any, from an audit log."""
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            event = json.loads(line) if line.endswith(b"\n") else {}
            verb, by_agent = _VERBS.get(event.get("verb", "")), event.get("userAgent") == agent
            is_done = event.get("stage") == "ResponseComplete" and "dryRun=" not in event["requestURI"]
            if verb and is_done and (by_agent or verb == "DELETE"):
                body = event.get("requestObject") or {"metadata": {"name": event["objectRef"].get("name", "")}}
                path, code = urlsplit(event["requestURI"]).path, event.get("responseStatus", {}).get("code", 0)
                yield Write(verb, path, code, json.dumps(body).encode())
