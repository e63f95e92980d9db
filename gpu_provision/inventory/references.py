"""References of an inventory to files and environment variables of this machine, and certificates for hosts.

Values replace references before the schema check, so that all values are checked alike. The text of the inventory, and
so every record, keeps the reference. Kubernetes resolves references to Secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_provision.inventory.document import Document, KeyPath, Problem, absolute_path
from gpu_provision.inventory.redaction import takes_value_from
from gpu_provision.model.findings import Finding, Severity

MAX_BYTES = 64 << 10
"""Largest size of a value; Linux limits environment variables to 128 KiB."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fill_values(document: Document, base: Path, *, is_local: bool) -> tuple[dict[str, Any], list[Problem]]:
    """Replace references by values; return the data, and a problem for each source that has no value.

    References without a value are left out, so that the other checks can run. Relative paths begin at ``base``. Files
    and variables of this machine are read only if ``is_local``.
    """
    values: dict[KeyPath, str | None] = {}
    problems: dict[tuple[str, str], Problem] = {}
    for path, source, name in find_references(document.data):
        value = _read_value(source, name, base) if is_local else _NOT_LOCAL
        values[path] = value if isinstance(value, str) else None
        if isinstance(value, Finding):
            problems.setdefault((source, name), document.problem((*path, source), value))
    return (_replace(document.data, values) if values else document.data), list(problems.values())


def mask_foreign(data: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a record for a comparison, with names in place of references that only the record has.

    A record must not make the tool read files or variables that the current inventory does not read.
    """
    known = {(source, name) for _, source, name in find_references(now)}
    foreign = {path: f"{source} {name}" for path, source, name in find_references(data) if (source, name) not in known}
    return dict(_replace(data, foreign)) if foreign else data


def drop_incomplete_references(data: Any, path: KeyPath = ()) -> Any:
    """Return data without references that lost a required key when schema errors were dropped."""
    if isinstance(data, dict):
        incomplete = [
            key
            for key, value in data.items()
            if isinstance(value, dict) and not {"name", "key"} <= (value.get("secret") or {}).keys()
            if takes_value_from((*path, key), "file")
        ]
        return {key: drop_incomplete_references(data[key], (*path, key)) for key in data if key not in incomplete}
    if isinstance(data, list):
        return [drop_incomplete_references(item, (*path, index)) for index, item in enumerate(data)]
    return data


def digest_values(digest: str, document: Document, data: dict[str, Any]) -> str:
    """Return a digest of an inventory's file and of its referenced values."""
    if data is document.data:
        return digest
    return hashlib.sha256(f"{digest} {json.dumps(data, sort_keys=True)}".encode()).hexdigest()


def find_references(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path, source (``file`` or ``env``) and name of each reference."""
    match value:
        case {"file": str(name)} if name and len(value) == 1 and takes_value_from(path, "file"):
            yield path, "file", name
        case {"env": str(name)} if _VARIABLE.fullmatch(name) and len(value) == 1 and takes_value_from(path, "env"):
            yield path, "env", name
        case dict():
            for key, item in value.items():
                yield from find_references(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from find_references(item, (*path, index))


def _replace(value: Any, values: Mapping[KeyPath, str | None], path: KeyPath = ()) -> Any:
    if isinstance(value, dict):
        below = {key: (*path, key) for key in value}
        return {
            key: values[here] if here in values else _replace(value[key], values, here)
            for key, here in below.items()
            if values.get(here, "") is not None
        }
    if isinstance(value, list):
        return [_replace(item, values, (*path, index)) for index, item in enumerate(value)]
    return value


def _value_finding(what: str, evidence: str, fix: str) -> Finding:
    return Finding(code="GP169", what=what, evidence=evidence, fix=fix)


_NOT_LOCAL = _value_finding(
    "A GPUStack cannot use `file` or `env`: they would refer to the controller's pod.",
    "",
    "Keep the value in a Secret of the cluster: {secret: {name: ..., key: ...}}",
)


def _read_value(source: str, name: str, base: Path) -> str | Finding:
    if source == "file":
        content = _read_file(name, base)
    elif (variable := os.environ.get(name)) is not None:
        content = os.fsencode(variable)
    else:
        fix = f"Set it, and run again: export {name}=..."
        content = _value_finding("The environment variable is not set.", name, fix)
    if isinstance(content, Finding):
        return content
    label = "The file with the value" if source == "file" else "The environment variable"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _value_finding(f"{label} is not UTF-8 text.", name, "Save it as UTF-8.")
    if not text:
        return _value_finding(f"{label} is empty.", name, "Write the value into it.")
    if "\0" in text:
        return _value_finding(f"{label} contains a NUL character.", name, "Write the value as a string.")
    if len(content) > MAX_BYTES:
        what = f"{label} is larger than {MAX_BYTES >> 10} KiB."
        return _value_finding(what, name, "Name a file that contains only the value.")
    return text


def _read_file(name: str, base: Path) -> bytes | Finding:
    """Return the value in a file; only a regular file is opened, since a pipe may block."""
    file = Path(absolute_path(name, base))
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return _value_finding("The file with the value is not a regular file.", name, "Name a regular file.")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 3)  # room for a final newline
    except FileNotFoundError:
        fix = f"Create it, or correct the path ({file})."
        return _value_finding("The file with the value does not exist on this machine.", name, fix)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = f"Grant yourself read permission, or correct the path ({file})."
        return _value_finding("The file with the value cannot be read.", f"{name}: {reason}", fix)
    return data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n")


MAX_CERTIFICATE_BYTES = 1 << 20
"""Largest size of a certificate file; the default CA bundle of a system has a quarter of that."""

_BLOCK = re.compile(r"^-----BEGIN ([A-Z0-9 ]+)-----\s*$.*?^-----END \1-----\s*$", re.MULTILINE | re.DOTALL)
_BEGIN = re.compile(r"^-----BEGIN ([A-Z0-9 ]+)-----", re.MULTILINE)
_CERTIFICATE = "CERTIFICATE"


def read_certificates(path: str) -> tuple[str, ...]:
    """Return the PEM certificates of a file, each as one text; none of an invalid file."""
    text = _read_text(Path(path), path)
    if isinstance(text, Finding) or any(label != _CERTIFICATE for label in _BEGIN.findall(text)):
        return ()
    return tuple(f"{match[0].strip()}\n" for match in _BLOCK.finditer(text))


def find_certificate_errors(path: str, name: str) -> Iterator[Finding]:
    """Yield findings about a certificate file, which the inventory calls ``name``; they show no key."""
    text = _read_text(Path(path), name)
    if isinstance(text, Finding):
        yield text
        return
    beginnings = list(_BEGIN.finditer(text))
    complete = {match.start(): match[0] for match in _BLOCK.finditer(text)}
    for match in beginnings:
        place, label = f"{name}, line {text.count(chr(10), 0, match.start()) + 1}", match[1]
        block, evidence = complete.get(match.start(), ""), f"{place}: -----BEGIN {label}-----"
        if label.endswith("PRIVATE KEY"):
            what = "The file of certificates holds a private key, which every host would get."
            fix = "Remove it; if others could read the file, create a new key."
            yield Finding(code="GP677", what=what, evidence=evidence, fix=fix)
        elif label != _CERTIFICATE or not block:
            what = "This is no certificate." if label != _CERTIFICATE else "The certificate has no end."
            yield _pem_finding(what, evidence, "Leave only whole certificates there.")
        else:
            yield from _check_certificate(block, place)
    if not text.strip():
        yield _pem_finding("The file is empty.", name, "Copy it again.")
    elif not beginnings:
        convert = "openssl x509 -inform der -in FILE -out FILE.pem converts a binary certificate to PEM."
        yield _pem_finding("The file holds no certificate in PEM.", name, convert)


def _pem_finding(what: str, evidence: str, fix: str) -> Finding:
    return Finding(code="GP678", what=what, evidence=evidence, fix=fix)


def _check_certificate(block: str, place: str) -> Iterator[Finding]:
    from cryptography import x509  # noqa: PLC0415  only files that name certificates need it

    try:
        read = x509.load_pem_x509_certificate(block.encode())
        subject, until = read.subject.rfc4514_string(), read.not_valid_after_utc
    except ValueError as error:
        evidence = f"{place}: {str(error).splitlines()[0][:100]}"
        yield _pem_finding("The certificate cannot be read.", evidence, "Copy it again.")
        return
    if until < datetime.now(UTC):
        yield Finding(
            code="GP679",
            what="The certificate has expired: what it signed is not trusted.",
            evidence=f"{place}: {subject}, valid until {until:%Y-%m-%d}",
            fix="Replace or remove it.",
            severity=Severity.WARNING,
        )


def _read_text(path: Path, name: str) -> str | Finding:
    try:
        if path.stat().st_size > MAX_CERTIFICATE_BYTES:
            return _pem_finding(
                f"The file is larger than {MAX_CERTIFICATE_BYTES >> 20} MiB.", name, "Name another one."
            )
        return path.read_text(encoding="ascii", errors="replace").replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = "Correct the path; relative ones begin at the inventory."
        return _pem_finding("The file of certificates cannot be read.", f"{name}: {reason}", fix)
