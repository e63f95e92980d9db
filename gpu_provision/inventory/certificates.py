"""Reads files of certificates that hosts are to trust, and says what is wrong with them; shows nothing of a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

CERTIFICATES_LIMIT = 1 << 20
"""Bytes that such a file may have; all certificates that a system trusts by itself are a quarter of that."""

KEY, UNUSABLE, EXPIRED = "GP677", "GP678", "GP679"

_BLOCK = re.compile(r"^-----BEGIN ([A-Z0-9 ]+)-----\s*$.*?^-----END \1-----\s*$", re.MULTILINE | re.DOTALL)
_BEGIN = re.compile(r"^-----BEGIN ([A-Z0-9 ]+)-----", re.MULTILINE)
_CERTIFICATE = "CERTIFICATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is wrong with a file.

    Attributes:
        line: Line of the file; 0 for all of it.
        is_error: False for what a run survives.
    """

    line: int = 0
    code: str
    what: str
    evidence: str = ""
    fix: str
    is_error: bool = True


def certificates(path: str) -> tuple[str, ...]:
    """Return the certificates of a file in PEM, one a text; none of a file that has something wrong with it."""
    text = _text(Path(path))
    if isinstance(text, Trouble) or any(label != _CERTIFICATE for label in _BEGIN.findall(text)):
        return ()
    return tuple(f"{found[0].strip()}\n" for found in _BLOCK.finditer(text))


def troubles(path: str) -> Iterator[Trouble]:
    """Yield everything that is wrong with a file."""
    text = _text(Path(path))
    if isinstance(text, Trouble):
        yield text
        return
    beginnings = list(_BEGIN.finditer(text))
    complete = {found.start(): found[0] for found in _BLOCK.finditer(text)}
    for found in beginnings:
        line = text.count("\n", 0, found.start()) + 1
        yield from _block(found[1], complete.get(found.start(), ""), line)
    if not beginnings:
        is_empty = not text.strip()
        what = "The file is empty." if is_empty else "The file holds no certificate in PEM."
        convert = "openssl x509 -inform der -in FILE -out FILE.pem makes PEM of a binary certificate."
        yield Trouble(code=UNUSABLE, what=what, fix="Copy it anew." if is_empty else convert)


def _block(label: str, block: str, line: int) -> Iterator[Trouble]:
    seen = f"-----BEGIN {label}-----"
    if label.endswith("PRIVATE KEY"):
        what = "A private key stands in a file of certificates, which every host would get."
        fix = "Take it out; if others may have read the file, make a new key."
        yield Trouble(line=line, code=KEY, what=what, evidence=seen, fix=fix)
    elif label != _CERTIFICATE or not block:
        what = "This is no certificate." if label != _CERTIFICATE else "The certificate has no end."
        yield Trouble(line=line, code=UNUSABLE, what=what, evidence=seen, fix="Leave only whole certificates there.")
    else:
        yield from _certificate(block, line)


def _certificate(block: str, line: int) -> Iterator[Trouble]:
    from cryptography import x509  # noqa: PLC0415  only files that name certificates need it

    try:
        read = x509.load_pem_x509_certificate(block.encode())
        subject, until = read.subject.rfc4514_string(), read.not_valid_after_utc
    except ValueError as error:
        what, fix = "The certificate cannot be read.", "Copy it anew."
        yield Trouble(line=line, code=UNUSABLE, what=what, evidence=str(error).splitlines()[0][:100], fix=fix)
        return
    if until < datetime.now(UTC):
        yield Trouble(
            line=line,
            code=EXPIRED,
            what="The certificate has expired: what it signed is not trusted.",
            evidence=f"{subject}, valid until {until:%Y-%m-%d}",
            fix="Replace it, or take it out.",
            is_error=False,
        )


def _text(path: Path) -> str | Trouble:
    fix, other = "Correct the path; relative ones begin at the inventory.", "Name another one."
    try:
        if path.stat().st_size > CERTIFICATES_LIMIT:
            return Trouble(code=UNUSABLE, what=f"The file is larger than {CERTIFICATES_LIMIT >> 20} MiB.", fix=other)
        return path.read_text(encoding="ascii", errors="replace").replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Trouble(code=UNUSABLE, what="The file of certificates cannot be read.", evidence=reason, fix=fix)
