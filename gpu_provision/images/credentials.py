"""The user's own credentials for registries, as docker and podman keep them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


def credentials(registry: str, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what the user has for a registry; None for nothing. Broken files count as nothing."""
    for path in _files(environment):
        found = _of_file(_read(path), registry)
        if found:
            return found
    return None


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where credentials may be: podman's places first where its variables are set, then docker's."""
    if environment.get("REGISTRY_AUTH_FILE"):
        yield Path(environment["REGISTRY_AUTH_FILE"])
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"], "containers/auth.json")
    docker = environment.get("DOCKER_CONFIG")
    yield Path(docker, "config.json") if docker else Path(environment.get("HOME", "/"), ".docker/config.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _mapping(content)


def _mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object; empty for any other value."""
    return value if isinstance(value, dict) else {}


def _of_file(config: Mapping[str, Any], registry: str) -> Credentials | None:
    keys = _HUB_KEYS if registry in _HUB_KEYS else (registry, f"https://{registry}")
    for key in keys:
        helper = _mapping(config.get("credHelpers")).get(key) or config.get("credsStore")
        found = _of_helper(helper, key) if isinstance(helper, str) else None
        found = found or _of_entry(_mapping(_mapping(config.get("auths")).get(key)))
        if found:
            return found
    return None


def _of_entry(entry: Mapping[str, Any]) -> Credentials | None:
    if entry.get("identitytoken"):
        return _made(_TOKEN_USER, entry["identitytoken"])
    try:
        user, colon, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    except (ValueError, TypeError):
        return None
    return Credentials(user, password) if colon else None


def _made(user: Any, password: Any) -> Credentials | None:
    """Return credentials of two texts that can be sent; None for anything else that JSON can hold."""
    if not (isinstance(user, str) and isinstance(password, str)):
        return None
    try:
        f"{user}{password}".encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return Credentials(user, password)


def _of_helper(name: str, key: str) -> Credentials | None:
    """Ask a credential helper: docker's protocol is the server's name in, JSON out."""
    program = shutil.which(f"docker-credential-{name}")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user's own configuration names
            [program, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=True
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError):
        return None
    return _made(_mapping(answer).get("Username"), _mapping(answer).get("Secret"))
