"""Hides secrets: values that the schema marks with ``x-secret``, and users and passwords in addresses.

``"x-secret": true`` hides a value. ``"x-secret": "credentials"`` hides the user and the password of an address.
``x-not-secret`` names the keys of a secret mapping whose values are shown, without users and passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import resolve_ref, schema

_NAMES = re.compile(
    r"passw|passphrase|pwd|secret|token|(api|access|private)_?key|_key$|credential|auth$", re.IGNORECASE
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_USER_OF_URL = re.compile(r"(?<=://)[^\s\"']*@")
_MARK = "x-secret"
_CREDENTIALS = "credentials"
HIDDEN = "(not shown)"


def is_secret(path: KeyPath) -> bool:
    """Return whether the schema marks the whole value at a path as secret.

    An unknown key below a marked path is marked, too.
    """
    return _secret_mark(path) is True


def is_shown_variable(name: str) -> bool:
    """Return whether the schema lists an environment variable as no secret."""
    return name in schema()["$defs"]["env"]["x-not-secret"]


def takes_value_from(path: KeyPath, source: str) -> bool:
    """Return whether the value at a path may come from a source: ``file``, ``env`` or ``secret``."""
    parts = list(_schema_parts(path))
    return len(parts) > len(path) and _MARK in parts[-1] and source in parts[-1].get("properties", ())


def _secret_mark(path: KeyPath) -> bool | str:
    """Return the mark of the last part of a path that the schema has."""
    parts = list(_schema_parts(path))
    is_exempt = any(step in part.get("x-not-secret", ()) for step, part in zip(path, parts, strict=False))
    mark: bool | str = _CREDENTIALS if is_exempt else parts[-1].get(_MARK, False)
    return mark


def _schema_parts(path: KeyPath) -> Iterator[dict[str, Any]]:
    """Yield the parts of the schema along a path, as far as the schema has them."""
    part = schema()
    yield part
    for step in path:
        inner = part.get("items") or part.get("properties", {}).get(step, part.get("additionalProperties"))
        if not isinstance(inner, dict):
            return
        part = resolve_ref(inner)
        yield part


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret; for advice only, never to show a value."""
    return bool(_NAMES.search(name))


def may_hold_secret(text: str) -> bool:
    """Return whether a line of free text, such as an argument, may show a secret."""
    return looks_secret(text) or has_password(text)


def has_password(value: str) -> bool:
    """Return whether a value is a URL with a password in it."""
    return bool(_URL_WITH_PASSWORD.search(value))


def hide_users(text: str) -> str:
    """Replace users and passwords of addresses in a text."""
    return _USER_OF_URL.sub(f"{HIDDEN}@", text)


def hide_credentials(text: str) -> str:
    """Replace user and password of an address; replace all of it if it is malformed."""
    bare = hide_users(text)
    return HIDDEN if "@" in bare.replace(f"{HIDDEN}@", "") else bare


def redact(path: KeyPath, value: object) -> str:
    """Return a value of an inventory without secrets, for findings and records; an empty one stays empty."""
    text = str(value)
    match _secret_mark(path):
        case True:
            return text and HIDDEN
        case str():
            return hide_credentials(text)
        case _:
            return hide_users(text)
