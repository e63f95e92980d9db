"""Reads the credentials of one context of a kubeconfig: CA, token, client certificate."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from gpu_provision.model.findings import Finding, UsageError

_TEXT, _TEXTS = {"type": "string"}, {"type": ["string", "null"]}


def _entries(singular: str, part: dict[str, Any]) -> dict[str, Any]:
    body = {"type": ["object", "null"], "properties": part}
    entry = {"type": "object", "required": ["name"], "properties": {"name": _TEXT, singular: body}}
    return {"type": ["array", "null"], "items": entry}


def _named_files(*keys: str) -> dict[str, Any]:
    return {name: _TEXTS for key in keys for name in (key, f"{key}-data")}


_SCHEMA = {
    "type": "object",
    "properties": {
        "current-context": _TEXTS,
        "contexts": _entries("context", {"cluster": _TEXTS, "user": _TEXTS}),
        "clusters": _entries("cluster", {"server": _TEXTS, **_named_files("certificate-authority")}),
        "users": _entries(
            "user", {"token": _TEXTS, "tokenFile": _TEXTS, **_named_files("client-certificate", "client-key")}
        ),
    },
}
"""Types of the parts of a kubeconfig that are read here."""


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
        """Return the TLS settings. Raises UsageError."""
        try:
            return self._ssl_context()
        except (OSError, ValueError) as error:
            what = f"the certificates of context {self.context} cannot be used"
            raise _unusable(self.server, what, str(error)) from None

    def _ssl_context(self) -> ssl.SSLContext:
        authority = "" if self.insecure else self.authority.decode()
        context = ssl.create_default_context(cadata=authority or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
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
    document = _document(file)
    name = context or document.get("current-context") or ""
    chosen = _named(document, "contexts", name)
    if chosen is None:
        known = ", ".join(entry["name"] for entry in document.get("contexts") or ())
        raise _unusable(file, f"the kubeconfig has no context {name!r}", f"it has: {known or 'none'}")
    cluster = _named(document, "clusters", chosen.get("cluster")) or {}
    user = _named(document, "users", chosen.get("user")) or {}
    server = cluster.get("server") or ""
    if not _is_address(server):
        raise _unusable(file, f"the context {name!r} names no server", f"server: {server!r}")
    if "exec" in user or "auth-provider" in user:
        raise _unusable(file, "simulated nodes need a token or a client certificate", "the user runs a plugin")
    token = user.get("token") or _data(user, "tokenFile", file.parent).decode(errors="replace").strip()
    if not _is_printable(token):
        raise _unusable(file, f"the token of context {name!r} cannot be sent", "it holds other characters than ASCII")
    return Credentials(
        server=server.rstrip("/"),
        context=name,
        authority=_data(cluster, "certificate-authority", file.parent),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        token=token,
        certificate=_data(user, "client-certificate", file.parent),
        key=_data(user, "client-key", file.parent),
    )


def _document(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unusable(file, "the kubeconfig cannot be read", str(error)) from None
    misfit = best_match(Draft202012Validator(_SCHEMA).iter_errors(document))
    if misfit is not None:
        wanted = (
            f"{misfit.json_path}: {misfit.validator} has to be {misfit.validator_value}"  # no value: it may be secret
        )
        raise _unusable(file, "this is no kubeconfig", wanted)
    return document


def _named(document: dict[str, Any], plural: str, name: str | None) -> dict[str, Any] | None:
    found = next((entry for entry in document.get(plural) or () if entry["name"] == name), None)
    return None if found is None else found.get(plural.removesuffix("s")) or {}


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and _is_printable(server)
    except ValueError:
        return False


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _data(section: dict[str, Any], key: str, folder: Path) -> bytes:
    if data := section.get(f"{key}-data"):
        try:
            return base64.b64decode(data)
        except ValueError as error:
            raise _unusable(folder, f"{key}-data is no base64", str(error)) from None
    if not section.get(key):
        return b""
    path = str(section[key])
    try:
        return (folder / Path(path).expanduser()).read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        raise _unusable(folder / path, f"the file of {key} cannot be read", str(error)) from None


def _unusable(file: Path | str, what: str, evidence: str) -> UsageError:
    fix = "name a kubeconfig and context that kubectl works with"
    return UsageError(Finding(code="GP721", what=what, where=str(file), evidence=evidence, fix=fix))
