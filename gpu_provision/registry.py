"""Asks a registry for an image's manifest by the OCI distribution API, with the user's own credentials.

Never raises, always ends.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any

from gpu_provision.model.hosts import ImageAvailability, ImageLookup

_HELPER_SECONDS = 5
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
_TOKEN_USER = "<token>"  # noqa: S105 - docker's word for "what follows is a token", no secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password; or a token, if ``is_token``."""

    user: str
    password: str = field(repr=False)

    @property
    def is_token(self) -> bool:
        """Whether the password is an identity token, which is exchanged for another one."""
        return self.user == _TOKEN_USER

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_credentials(registry: str, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what the user has for a registry; None for nothing. Broken files count as nothing."""
    run, docker = environment.get("XDG_RUNTIME_DIR"), environment.get("DOCKER_CONFIG")
    podmans = (environment.get("REGISTRY_AUTH_FILE"), run and f"{run}/containers/auth.json")  # if variables name them
    dockers = f"{docker}/config.json" if docker else f"{environment.get('HOME', '/')}/.docker/config.json"
    for place in filter(None, (*podmans, dockers)):
        with suppress(OSError):
            if found := _from_file(_json_object(Path(place).read_bytes()), registry):
                return found
    return None


def _json_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object of a text; empty for any other text."""
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _from_file(config: Mapping[str, Any], registry: str) -> Credentials | None:
    keys = _HUB_KEYS if registry in _HUB_KEYS else (registry, f"https://{registry}")
    for key in keys:
        helper = _mapping(config.get("credHelpers")).get(key) or config.get("credsStore")
        found = _from_helper(helper, key) if isinstance(helper, str) else None
        if found := found or _from_entry(_mapping(_mapping(config.get("auths")).get(key))):
            return found
    return None


def _from_entry(entry: Mapping[str, Any]) -> Credentials | None:
    if entry.get("identitytoken"):
        return _validate_credentials(_TOKEN_USER, entry["identitytoken"])
    with suppress(ValueError, TypeError):
        user, colon, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
        return Credentials(user, password) if colon else None
    return None


def _validate_credentials(user: Any, password: Any) -> Credentials | None:
    """Return credentials of two texts that can be sent; None for anything else that JSON can hold."""
    if isinstance(user, str) and isinstance(password, str):
        with suppress(UnicodeEncodeError):  # of half of a surrogate pair
            f"{user}{password}".encode()
            return Credentials(user, password)
    return None


def _from_helper(name: str, key: str) -> Credentials | None:
    """Ask a credential helper: docker's protocol is the server's name in, JSON out."""
    program = shutil.which(f"docker-credential-{name}")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user's own configuration names
            [program, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    answer = _json_object(done.stdout)
    return _validate_credentials(answer.get("Username"), answer.get("Secret"))


SECONDS = 15  # for all requests about one image together
_MAX_BYTES = 4 << 20  # what the specification asks registries to accept as a manifest
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPT = ", ".join((*_INDEXES, *_MANIFESTS))
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _OK = 401, 403, 404, 200
_REDIRECT = 3  # first digit of the statuses
_MOST = "amd64"


def look_up_image(image: str, architecture: str) -> ImageLookup:
    """Return whether a registry has an image for an architecture, such as ``amd64``; the answer holds no secret."""
    reference = parse_reference(image)
    answers: list[ImageLookup] = []

    def fetch() -> None:
        try:
            answers.append(_ask(image, reference, architecture, time.monotonic() + SECONDS))
        except _NoAnswerError as silence:
            answers.append(ImageLookup(image, ImageAvailability.UNREACHABLE, str(silence)))

    # A thread, as no socket option bounds name resolution, several addresses, or, under gevent, a handshake.
    thread = threading.Thread(target=fetch, name=f"registry {reference.host}", daemon=True)
    thread.start()
    thread.join(SECONDS)
    late = ImageLookup(image, ImageAvailability.UNREACHABLE, f"{reference.host}: no answer within {SECONDS} seconds")
    return answers[0] if answers else late


class _NoAnswerError(Exception):
    """No server answered as a registry does; the text says why."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: Message[str, str]
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        return _json_object(self.body)


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Takes every status as an answer, redirects too: following one would carry the credentials elsewhere."""

    def https_response(self, request: urllib.request.Request, response: Any) -> Any:  # noqa: ARG002 - urllib's signature
        return response


def _ask(image: str, reference: ImageReference, architecture: str, deadline: float) -> ImageLookup:
    """Return the answer about an image. Its manifest is read only for platforms: that counts as a pull.

    An index names them. The manifest of one image, such as a copy in a mirror, does not, but its configuration does;
    amd64, which most of these are for, is not looked up. Raises _NoAnswerError.
    """
    headers = {"Accept": _ACCEPT}
    response = _request(reference.manifest, headers, deadline, method="HEAD")
    if response.status == _UNAUTHORIZED:
        known = find_credentials(reference.registry)
        authorization = _authorization(response.headers.get("WWW-Authenticate", ""), reference, known, deadline)
        if authorization:
            headers["Authorization"] = authorization
            response = _request(reference.manifest, headers, deadline, method="HEAD")
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    found = []
    if response.status == _OK and kind in _INDEXES:
        response = _request(reference.manifest, headers, deadline)
        found = _architectures(response)
    elif response.status == _OK and kind in _MANIFESTS and architecture not in {"", _MOST}:
        found = _architecture_of_config(reference, headers, deadline)
    return _answer(image, reference, architecture, response, found)


def _architectures(index: _Response) -> list[str]:
    named = (_mapping(_mapping(each).get("platform")).get("architecture") for each in _items(index, "manifests"))
    return sorted({name for name in named if isinstance(name, str) and name not in {"", "unknown"}})


def _architecture_of_config(reference: ImageReference, headers: dict[str, str], deadline: float) -> list[str]:
    """Return the architecture of the configuration that a manifest names; nothing if it is not to be had."""
    with suppress(_NoAnswerError):
        manifest = _request(reference.manifest, headers, deadline)
        digest = _mapping(manifest.content.get("config")).get("digest")
        if not isinstance(digest, str) or not re.fullmatch(r"[a-z0-9]+:[0-9a-f]+", digest):
            return []
        config = _request(f"https://{reference.host}/v2/{reference.name}/blobs/{digest}", headers, deadline)
        target = config.headers.get("Location", "")
        if config.status // 100 == _REDIRECT and target.startswith("https://"):
            config = _request(target, {}, deadline)  # a server of another owner: it gets no credentials
        found = config.content.get("architecture")
        return [found] if isinstance(found, str) and found else []
    return []


def _authorization(challenge: str, reference: ImageReference, known: Credentials | None, deadline: float) -> str:
    """Return the header that the registry's challenge asks for; empty if there is nothing to offer."""
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() == "basic":
        return known.basic if known else ""
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = parameters.get("realm", "")
    if scheme.lower() != "bearer" or not realm.startswith("https://"):
        return ""
    query = {"service": parameters.get("service", ""), "scope": f"repository:{reference.name}:pull"}
    if known and known.is_token:
        form = {**query, "grant_type": "refresh_token", "client_id": "gpu-provision", "refresh_token": known.password}
        response = _request(realm, {}, deadline, urllib.parse.urlencode(form).encode())
    else:
        headers = {"Authorization": known.basic} if known else {}
        response = _request(f"{realm}?{urllib.parse.urlencode(query)}", headers, deadline)
    token = str(response.content.get("token") or response.content.get("access_token") or "")
    return f"Bearer {token}" if token else ""


def _request(
    url: str, headers: dict[str, str], deadline: float, data: bytes | None = None, method: str | None = None
) -> _Response:
    """Return what a server answers, whatever its status. Raises _NoAnswerError."""
    host = url.removeprefix("https://").partition("/")[0]
    try:
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - https by construction
        handler = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        # Each step may take that long; the caller bounds them together.
        left = max(0.01, deadline - time.monotonic())
        with urllib.request.build_opener(_EveryStatus, handler).open(request, timeout=left) as response:
            return _Response(response.status, response.headers, response.read(_MAX_BYTES))
    except (OSError, HTTPException) as error:
        message = f"{host}: {getattr(error, 'reason', error)}"
        raise _NoAnswerError(message) from error
    except ValueError:  # its text may hold the token
        message = f"{host}: the registry's answer leads to no valid request"
        raise _NoAnswerError(message) from None


def _answer(
    image: str, reference: ImageReference, architecture: str, response: _Response, found: list[str]
) -> ImageLookup:
    said = f"{reference.host}: HTTP {response.status}{_reason(response)}"
    if response.status == _NOT_FOUND:
        return ImageLookup(image, ImageAvailability.ABSENT, said)
    if response.status in {_UNAUTHORIZED, _FORBIDDEN}:
        return ImageLookup(image, ImageAvailability.REFUSED, said)
    if response.status != _OK:
        redirected = response.status // 100 == _REDIRECT
        return ImageLookup(image, ImageAvailability.PRESENT if redirected else ImageAvailability.UNREACHABLE, said)
    lacks = bool(found) and bool(architecture) and architecture not in found
    state = ImageAvailability.OTHER_ARCHITECTURE if lacks else ImageAvailability.PRESENT
    return ImageLookup(image, state, f"{reference.host}: {', '.join(found) or 'one manifest'}")


def _items(response: _Response, key: str) -> list[Any]:
    found = response.content.get(key)
    return found if isinstance(found, list) else []


def _reason(response: _Response) -> str:
    """Return the code of the registry's first error, such as MANIFEST_UNKNOWN."""
    code = next((str(_mapping(each).get("code", "")) for each in _items(response, "errors")), "")
    return f" {code}" if re.fullmatch(r"[A-Z_]{1,40}", code) else ""


_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry."""

    registry: str  # host, with a port if there is one: ``nvcr.io``
    name: str  # ``nvidia/driver``
    version: str  # A tag or a digest

    @property
    def host(self) -> str:
        """The host that answers for the registry."""
        return _HUB_API if self.registry == _HUB else self.registry

    @property
    def manifest(self) -> str:
        """The URL of its manifest."""
        return f"https://{self.host}/v2/{self.name}/manifests/{self.version}"


def parse_reference(text: str) -> ImageReference:
    """Read ``nvcr.io/nvidia/driver:580-ubuntu22.04``, ``busybox``, ``registry:5000/x@sha256:...``."""
    name, at, digest = text.partition("@")
    head, slash, rest = name.partition("/")
    is_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if is_host else (_HUB, name)
    path, _, tag = path.partition(":")
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return ImageReference(registry, path, digest if at else tag or "latest")
