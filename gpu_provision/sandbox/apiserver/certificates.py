"""The private certificate authority of one sandbox and the certificate of its server, kept in its directory."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import trustme

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
