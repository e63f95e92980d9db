"""Proxies that an inventory declares: for container runtimes on hosts, and for the driver container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_provision.inventory.paths import absolute

ADDRESSES = ("http_proxy", "https_proxy")
_ALL = (*ADDRESSES, "no_proxy")


def runtime_proxy(section: Mapping[str, Any], base: Path) -> dict[str, str]:
    """Return the settings for container runtimes, with credentials, without what is empty.

    Args:
        section: ``proxy`` of the inventory.
        base: Folder of the inventory.
    """
    credentials = _credentials(absolute(section.get("credentials_file", ""), base))
    values = {key: section.get(key, "") for key in _ALL}
    return {
        key: _with(value, credentials) if key in ADDRESSES else value
        for key, value in values.items()
        if value and any(values[address] for address in ADDRESSES)
    }


def needs_credentials(section: Mapping[str, Any]) -> bool:
    """Return whether an address of a ``proxy`` section is of use only with credentials."""
    return bool(section.get("credentials_file")) or any("@" in section.get(key, "") for key in ADDRESSES)


def container_env(section: Mapping[str, Any], own: Mapping[str, object]) -> dict[str, str]:
    """Return the variables that tell the driver container of the proxies, in the two forms that programs read.

    None if its own variables name a proxy, nor if the proxies need credentials: whoever may read pods would see them.
    """
    if needs_credentials(section) or any(name.lower() in ADDRESSES for name in own):
        return {}
    values = runtime_proxy(section, Path())
    return {name: value for key, value in values.items() for name in (key.upper(), key)}


def _credentials(path: str) -> str:
    """Return ``user:password`` fit for an address; empty for no file, or one that cannot be read: a check says so."""
    try:
        user, _, password = Path(path).read_text(encoding="utf-8").split("\n", 1)[0].strip().partition(":")
    except (OSError, ValueError):
        return ""
    return f"{quote(user, safe='')}:{quote(password, safe='')}"


def _with(address: str, credentials: str) -> str:
    if not credentials or not address or "@" in address:
        return address
    return re.sub(r"^([a-z0-9]+://)", lambda found: f"{found[1]}{credentials}@", address)
