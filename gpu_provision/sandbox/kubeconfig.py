"""Reads the credentials of one context of a kubeconfig: CA, token, client certificate."""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.model.findings import Finding, UsageError


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
    file = Path(path).expanduser()
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _unusable(file, "the kubeconfig cannot be read", str(error)) from None
    name = context or document.get("current-context", "")
    chosen = _named(document, "contexts", "context", name)
    if chosen is None:
        known = ", ".join(entry.get("name", "") for entry in document.get("contexts") or ())
        raise _unusable(file, f"the kubeconfig has no context {name!r}", f"it has: {known or 'none'}")
    cluster = _named(document, "clusters", "cluster", chosen.get("cluster", "")) or {}
    user = _named(document, "users", "user", chosen.get("user", "")) or {}
    if not cluster.get("server"):
        raise _unusable(file, f"the context {name!r} names no server", chosen.get("cluster", ""))
    if "exec" in user or "auth-provider" in user:
        raise _unusable(file, "simulated nodes need a token or a client certificate", "the user runs a plugin")
    return Credentials(
        server=cluster["server"].rstrip("/"),
        context=name,
        authority=_data(cluster, "certificate-authority", file.parent),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        token=user.get("token") or _data(user, "tokenFile", file.parent).decode().strip(),
        certificate=_data(user, "client-certificate", file.parent),
        key=_data(user, "client-key", file.parent),
    )


def _named(document: Mapping[str, Any], plural: str, singular: str, name: str) -> dict[str, Any] | None:
    entries = document.get(plural) or ()
    return next((entry.get(singular) or {} for entry in entries if entry.get("name") == name), None)


def _data(section: Mapping[str, Any], key: str, folder: Path) -> bytes:
    if section.get(f"{key}-data"):
        return base64.b64decode(str(section[f"{key}-data"]))
    if not section.get(key):
        return b""
    path = folder / Path(section[key]).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unusable(path, f"the file of {key} cannot be read", str(error)) from None


def _unusable(file: Path, what: str, evidence: str) -> UsageError:
    fix = "name a kubeconfig and context that kubectl works with"
    return UsageError(Finding(code="GP721", what=what, where=str(file), evidence=evidence, fix=fix))
