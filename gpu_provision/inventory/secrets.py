"""Tells what looks like a secret, so that none reaches a finding."""

from __future__ import annotations

import re

from gpu_provision.inventory.document import Path, visible

_NAMES = re.compile(
    r"passw|passphrase|pwd|secret|token|(api|access|private)_?key|_key$|credential|auth$", re.IGNORECASE
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_USER_OF_URL = re.compile(r"(?<=://)[^\s\"']*@")
HIDDEN = "(not shown)"


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret."""
    return bool(_NAMES.search(name))


def holds_secret(text: str) -> bool:
    """Return whether a line of text may show a secret."""
    return is_secret_name(text) or bool(_URL_WITH_PASSWORD.search(text))


def has_password(value: str) -> bool:
    """Return whether a value is a URL with a password in it."""
    return bool(_URL_WITH_PASSWORD.search(value))


def without_users(text: str) -> str:
    """Return a text without the users and passwords of addresses in it."""
    return _USER_OF_URL.sub(f"{HIDDEN}@", text)


def shown(path: Path, value: object) -> str:
    """Return a value as evidence, or a placeholder where it may be a secret."""
    in_env = "env" in path[:-1] and any(is_secret_name(str(step)) for step in path)
    text = str(value)
    in_proxy = "proxy" in path[:-1] and "@" in text
    return HIDDEN if in_env or in_proxy or has_password(text) else visible(text)
