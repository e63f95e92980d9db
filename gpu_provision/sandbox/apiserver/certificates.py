"""The private certificate authority of one sandbox, its server certificate, and the kubeconfig for clients."""

from __future__ import annotations

import base64
import datetime as dt
import ssl
from pathlib import Path

import trustme
import yaml

from gpu_provision import files

_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_YEARS = dt.timedelta(days=3650)


def ensure(directory: Path, host: str) -> Path:
    """Make the certificates if they are missing; return the path of the authority's."""
    authority, server = directory / "ca.crt", directory / "server.pem"
    if authority.exists() and server.exists():
        return authority
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    expires = dt.datetime.now(dt.UTC) + _YEARS
    maker = trustme.CA(organization_name="gpu-provision sandbox")
    names = dict.fromkeys((*_NAMES, host))
    made = maker.issue_cert(*names, organization_name="gpu-provision sandbox", not_after=expires)
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


def write(  # noqa: PLR0913 - the parts of the file
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
    files.put(path, yaml.safe_dump(config, sort_keys=False), private=True)
