"""Who may come to a control plane, and how: tokens and kubeconfigs."""

from __future__ import annotations

import json
import secrets
import ssl
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.real.authority import write_private

ADMIN = "admin"
SYSTEM_USERS = ("system:kube-controller-manager", "system:kube-scheduler")
"""Users to whom the API server itself binds what these programs need."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The token of each user, by name; groups beyond ``system:authenticated``, with commas."""

    tokens: Mapping[str, str]
    groups: Mapping[str, str]

    def csv(self) -> bytes:
        """Return the file that the API server reads: token, name, uid and, quoted, groups."""
        return "".join(self._line(user) for user in self.tokens).encode()

    def _line(self, user: str) -> str:
        groups = f',"{self.groups[user]}"' if self.groups[user] else ""
        return f"{self.tokens[user]},{user},{user}{groups}\n"


def passes(users: Mapping[str, str]) -> Passes:
    """Make tokens for an administrator, for Kubernetes' own programs and for users with their groups."""
    groups = {ADMIN: "system:masters", **dict.fromkeys(SYSTEM_USERS, ""), **users}
    return Passes({user: secrets.token_urlsafe() for user in groups}, groups)


def kubeconfig_file(directory: Path, user: str) -> Path:
    """Return where a user's kubeconfig is; clients read a path with colons as several."""
    return directory / f"{user.replace(':', '-')}.kubeconfig"


def write_kubeconfig(file: Path, server: str, authority: Path, user: str, token: str) -> None:
    """Write a user's kubeconfig; its cluster and context are called real."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
        "current-context": "real",
    }
    write_private(file, yaml.safe_dump(config, sort_keys=False).encode())


def ask(url: str, trust: ssl.SSLContext, token: str = "") -> bytes | None:
    """Return what a server answers with success; None if it refuses or does not answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - a URL of our own
    with suppress(OSError), urllib.request.urlopen(request, context=trust, timeout=5) as answer:  # noqa: S310 - as above
        return bytes(answer.read())
    return None


def ask_json(url: str, trust: ssl.SSLContext, token: str) -> dict[str, Any]:
    """Return an object that a server has; an empty one if it has not."""
    return dict(json.loads(ask(url, trust, token) or b"{}"))
