"""Asks a registry for an image's manifest by the OCI distribution API. Never raises, always ends."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any

from gpu_provision.preflight.subject import ImageAnswer, ImageState
from gpu_provision.registry.credentials import Credentials, credentials
from gpu_provision.registry.references import Reference, parse

SECONDS = 15
"""For all requests about one image together."""

_MOST_BYTES = 4 << 20  # what the specification asks registries to accept as a manifest
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPT = ", ".join((*_INDEXES, *_MANIFESTS))
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _OK = 401, 403, 404, 200


def ask(image: str, architecture: str) -> ImageAnswer:
    """Return whether a registry has an image for an architecture, such as ``amd64``.

    The user's own credentials are used where the registry wants some. What it says is cut to what holds no secret.
    """
    reference = parse(image)
    deadline = time.monotonic() + SECONDS
    try:
        response = _manifest(reference, deadline)
    except _Silent as silence:
        return ImageAnswer(image, ImageState.UNREACHABLE, str(silence))
    return _answer(image, reference, architecture, response)


class _Silent(Exception):
    """Nobody answered as a registry does; the text says why."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: Message[str, str]
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        try:
            content = json.loads(self.body)
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the credentials elsewhere; that there is one is answer enough."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _manifest(reference: Reference, deadline: float) -> _Response:
    """Return the answer about a manifest; only an index, which names platforms, is read, too."""
    headers = {"Accept": _ACCEPT}
    response = _request(reference.manifest, headers, deadline, method="HEAD")
    if response.status == _UNAUTHORIZED:
        known = credentials(reference.registry)
        authorization = _authorization(response.headers.get("WWW-Authenticate", ""), reference, known, deadline)
        if not authorization:
            return response
        headers["Authorization"] = authorization
        response = _request(reference.manifest, headers, deadline, method="HEAD")
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    is_index = response.status == _OK and kind in _INDEXES
    return _request(reference.manifest, headers, deadline) if is_index else response


def _authorization(challenge: str, reference: Reference, known: Credentials | None, deadline: float) -> str:
    """Return the header that the registry's challenge asks for; empty if there is nothing to offer."""
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() == "basic":
        return known.basic if known else ""
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = parameters.get("realm", "")
    if scheme.lower() != "bearer" or not realm.startswith("https://"):
        return ""
    query = {"service": parameters.get("service", ""), "scope": f"repository:{reference.name}:pull"}
    token = _token(realm, query, known, deadline)
    return f"Bearer {token}" if token else ""


def _token(realm: str, query: dict[str, str], known: Credentials | None, deadline: float) -> str:
    if known and known.is_token:
        form = {**query, "grant_type": "refresh_token", "client_id": "gpu-provision", "refresh_token": known.password}
        response = _request(realm, {}, deadline, urllib.parse.urlencode(form).encode())
    else:
        headers = {"Authorization": known.basic} if known else {}
        response = _request(f"{realm}?{urllib.parse.urlencode(query)}", headers, deadline)
    return str(response.content.get("token") or response.content.get("access_token") or "")


def _request(
    url: str, headers: dict[str, str], deadline: float, data: bytes | None = None, method: str | None = None
) -> _Response:
    """Return what a server answers, whatever its status. Raises _Silent."""
    left = deadline - time.monotonic()
    if left <= 0:
        message = f"no answer within {SECONDS} seconds"
        raise _Silent(message)
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - https by construction
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(request, timeout=left / 2) as response:
            return _Response(response.status, response.headers, response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return _Response(error.code, error.headers, error.read(_MOST_BYTES))
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        message = f"{urllib.parse.urlsplit(url).netloc}: {reason}"
        raise _Silent(message) from error


def _answer(image: str, reference: Reference, architecture: str, response: _Response) -> ImageAnswer:
    said = f"{reference.host}: HTTP {response.status}{_reason(response)}"
    if response.status == _NOT_FOUND:
        return ImageAnswer(image, ImageState.ABSENT, said)
    if response.status in {_UNAUTHORIZED, _FORBIDDEN}:
        return ImageAnswer(image, ImageState.REFUSED, said)
    if response.status == _OK:
        return _by_platform(image, reference, architecture, response)
    redirected = 300 <= response.status < 400  # noqa: PLR2004 - the class of statuses
    return ImageAnswer(image, ImageState.PRESENT if redirected else ImageState.UNREACHABLE, said)


def _by_platform(image: str, reference: Reference, architecture: str, response: _Response) -> ImageAnswer:
    """Look for the architecture in an index; a bare manifest does not say whom it is for."""
    platforms = [entry.get("platform", {}) for entry in response.content.get("manifests", ())]
    found = sorted(
        {str(each["architecture"]) for each in platforms if each.get("architecture", "unknown") != "unknown"}
    )
    said = f"{reference.host}: {', '.join(found) or 'one manifest'}"
    lacks = bool(found) and bool(architecture) and architecture not in found
    return ImageAnswer(image, ImageState.OTHER_ARCHITECTURE if lacks else ImageState.PRESENT, said)


def _reason(response: _Response) -> str:
    """Return the code of the registry's first error, such as MANIFEST_UNKNOWN."""
    errors = response.content.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else {}
    code = str(first.get("code", "")) if isinstance(first, dict) else ""
    return f" {code}" if re.fullmatch(r"[A-Z_]{1,40}", code) else ""
