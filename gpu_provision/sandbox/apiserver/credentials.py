"""The credentials of one sandbox: certificates of its own authority, bearer tokens, and kubeconfigs."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import secrets
import ssl
from pathlib import Path

import trustme
import yaml

from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.state import replace_file

ADMIN, ANONYMOUS = "sandbox-admin", "system:anonymous"
_ORGANIZATION = "gpu-provision sandbox"
_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_LIFETIME = dt.timedelta(days=3650)


class Tokens:
    """The file ``tokens.json``: token -> user name; read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        """Make the file with one token for the administrator if it is not there."""
        self._path, self._users, self._read_at = path, dict[str, str](), -1
        if not path.exists():
            self.add(ADMIN)

    def users(self) -> dict[str, str]:
        """Return user names by token; while the file cannot be read, those of before."""
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed_at != self._read_at:
            self._read_at = changed_at
            with contextlib.suppress(OSError, ValueError):
                self._users = dict(json.loads(self._path.read_text()))
        return self._users

    def token(self, user: str = ADMIN) -> str:
        """Return a user's token."""
        return next(token for token, name in self.users().items() if name == user)

    def add(self, user: str) -> str:
        """Give a user a new token. Only the owner may read the file, which is replaced in one step."""
        token = secrets.token_urlsafe(32)
        replace_file(self._path, json.dumps({**self.users(), token: user}, indent=1), private=True)
        return token

    def ensure(self, user: str) -> str:
        """Return a user's token, a new one if they have none."""
        return self.token(user) if user in self.users().values() else self.add(user)

    def authenticate(self, header: str) -> str:
        """Return the user of an Authorization header, the anonymous one without a token. Raises StatusError 401."""
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = self.users().get(token.strip())
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user


def ensure_certificates(directory: Path, host: str) -> Path:
    """Make the certificates if they are missing; return the path of the authority's."""
    authority, server = directory / "ca.crt", directory / "server.pem"
    if authority.exists() and server.exists():
        return authority
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    maker, names = trustme.CA(organization_name=_ORGANIZATION), dict.fromkeys((*_NAMES, host))
    made = maker.issue_cert(*names, organization_name=_ORGANIZATION, not_after=dt.datetime.now(dt.UTC) + _LIFETIME)
    server.touch(mode=0o600)
    made.private_key_and_cert_chain_pem.write_to_path(str(server))
    maker.cert_pem.write_to_path(str(authority))
    return authority


def server_context(directory: Path) -> ssl.SSLContext:
    """Return the TLS settings of the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory / "server.pem")
    return context


def write_kubeconfig(  # noqa: PLR0913 - the parts of the file
    path: Path, *, url: str, authority: Path, token: str, context: str, user: str
) -> None:
    """Write a kubeconfig that only its owner may read, in one step, so that no reader sees half of it."""
    data = base64.b64encode(authority.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url, "certificate-authority-data": data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
        "current-context": context,
    }
    replace_file(path, yaml.safe_dump(config, sort_keys=False), private=True)
