"""Reads the credentials of one context of a kubeconfig: CA, token, client certificate."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gpu_provision.cluster.kubeconfig_entries import choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to reach an API server; the secret parts do not show when the value is printed."""

    server: str
    context: str
    authority: bytes = field(default=b"", repr=False)
    insecure: bool = False
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings."""
        context = ssl.create_default_context()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.authority:
            context = ssl.create_default_context(cadata=self.authority.decode())
        if self.certificate:
            _load_client(context, self.certificate, self.key)
        return context


def _load_client(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The standard library takes client certificates from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def credentials(path: str | Path, context: str = "") -> Credentials:
    """Return the credentials of a context, the current one by default. Raises UsageError."""
    chosen = choose(str(Path(path).expanduser()), context)
    cluster, user = chosen.cluster, chosen.user
    if not cluster.text("server"):
        raise cluster.bad(key="server", reason="it is missing")
    for key in ("exec", "auth-provider"):
        if user.data.get(key):
            raise user.bad(key=key, reason="simulated nodes need a token or a client certificate")
    token = user.text("token") or (user.text("tokenFile") and user.read("tokenFile").decode(errors="replace").strip())
    return Credentials(
        server=cluster.text("server").rstrip("/"),
        context=chosen.name,
        authority=cluster.content("certificate-authority"),
        insecure=cluster.flag("insecure-skip-tls-verify"),
        token=token,
        certificate=user.content("client-certificate"),
        key=user.content("client-key"),
    )
