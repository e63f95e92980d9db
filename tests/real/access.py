"""Who may come to a control plane, and how: its certificate authority, tokens and kubeconfigs."""

from __future__ import annotations

import os
import ssl
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trustme
import yaml

ADMIN = "admin"
SERVICE_ADDRESS = "10.0.0.1"
"""Of the Service ``kubernetes``: always the first of its range."""


@dataclass(frozen=True, slots=True)
class Certificate:
    certificate: Path
    key: Path


class Authority:
    """Issues certificates; another process that opens the same folder goes on with the same authority."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certificate = folder, folder / "ca.crt"
        key = folder / "ca.key"
        if not key.exists():
            made = trustme.CA()
            write_private(key, made.private_key_pem.bytes())
            self.certificate.write_bytes(made.cert_pem.bytes())
        self._ca = trustme.CA.from_pem(self.certificate.read_bytes(), key.read_bytes())

    def issue(self, name: str, *hosts: str, group: str | None = None) -> Certificate:
        """Issue a certificate, for a server at ``hosts`` and for a client ``name`` in a group, and write it down."""
        made = self._ca.issue_cert(*(hosts or ("localhost",)), common_name=name, organization_name=group)
        files = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        files.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        write_private(files.key, made.private_key_pem.bytes())
        return files

    def trust(self, client: Certificate | None = None) -> ssl.SSLContext:
        """Return what trusts this authority alone, and shows a client certificate to who asks for one."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if client:
            context.load_cert_chain(client.certificate, client.key)
        return context


def signing_key() -> bytes:
    return trustme.CA().issue_cert("localhost", key_type=trustme.KeyType.RSA).private_key_pem.bytes()


def write_private(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as private:
        private.write(content)


def kubeconfig_file(directory: Path, user: str) -> Path:
    """Return where a user's kubeconfig is; clients read a path with colons as several."""
    return directory / f"{user.replace(':', '-')}.kubeconfig"


def write_kubeconfig(file: Path, server: str, authority: Path, user: str, token: str) -> None:
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
