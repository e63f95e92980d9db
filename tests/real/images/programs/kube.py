"""The Kubernetes API as a pod reaches it: with its service account, at the address that its environment names."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Object = dict[str, Any]
Query = Mapping[str, str]

CONFLICT, NOT_FOUND = 409, 404
NODE_FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = 330.0
"""Longer than the server keeps a watch open for us."""
_WATCH_SECONDS = 300


class ApiError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def namespace() -> str:
    return (_ACCOUNT / "namespace").read_text()


def request(
    verb: str, path: str, body: Object | None = None, *, kind: str = "application/json", query: Query | None = None
) -> Object:
    """Return the server's answer. Raises ApiError if it refuses, OSError if it cannot be reached."""
    response = _send(verb, path, body, kind, query or {})
    return dict(json.loads(response.read() or b"{}"))


def patch(path: str, change: Object) -> Object:
    return request("PATCH", path, change, kind="application/merge-patch+json")


def watch(path: str, query: Query | None = None) -> Iterator[tuple[str, Object]]:
    """Yield (``ADDED``, ``MODIFIED`` or ``DELETED``, object) from the present state on, for a few minutes.

    ``SYNCED`` stands between what exists already and what changes later.
    """
    listed = request("GET", path, query=query)
    for item in listed["items"]:
        yield "ADDED", item
    yield "SYNCED", {}
    following = {**(query or {}), "watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
    response = _send("GET", path, None, "", {**following, "timeoutSeconds": str(_WATCH_SECONDS)})
    while line := response.readline():
        event = json.loads(line)
        if event["type"] == "ERROR":
            return
        yield event["type"], event["object"]


def _send(verb: str, path: str, body: Object | None, kind: str, query: Query) -> http.client.HTTPResponse:
    trust = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    address = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    connection = http.client.HTTPSConnection(*address, timeout=_TIMEOUT, context=trust)
    headers = {"Authorization": f"Bearer {(_ACCOUNT / 'token').read_text()}", "Accept": "application/json"}
    if kind and body is not None:
        headers["Content-Type"] = kind
    target = f"{path}?{urlencode(query)}" if query else path
    connection.request(verb, target, json.dumps(body) if body is not None else None, headers)
    response = connection.getresponse()
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        raise ApiError(response.status, _message(response.read()))
    return response


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
