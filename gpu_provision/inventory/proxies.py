"""The section ``proxy``: the settings of container runtimes, and the variables of the driver container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_provision.inventory.document import absolute_path
from gpu_provision.inventory.json_schema import ADDRESSES


def runtime_proxy(section: Mapping[str, Any], base: Path) -> dict[str, str]:
    """Return the settings of a ``proxy`` section for container runtimes, with credentials, without empty ones."""
    credentials = _read_credentials(absolute_path(section.get("credentials_file", ""), base))
    values = {key: section.get(key, "") for key in (*ADDRESSES, "no_proxy")}
    if not any(values[address] for address in ADDRESSES):
        return {}
    for key in ADDRESSES:
        if credentials and "@" not in values[key]:
            values[key] = re.sub(r"^([a-z0-9]+://)", lambda found: f"{found[1]}{credentials}@", values[key])
    return {key: value for key, value in values.items() if value}


def needs_credentials(section: Mapping[str, Any]) -> bool:
    """Return whether a ``proxy`` section has credentials."""
    return bool(section.get("credentials_file")) or any("@" in section.get(key, "") for key in ADDRESSES)


def container_env(section: Mapping[str, Any], own: Mapping[str, object]) -> dict[str, str]:
    """Return the proxy variables of the driver container, in upper and lower case.

    Empty if its own variables set a proxy, or if the proxies need credentials, which pods would show.
    """
    if needs_credentials(section) or any(name.lower() in ADDRESSES for name in own):
        return {}
    values = runtime_proxy(section, Path())
    return {name: value for key, value in values.items() for name in (key.upper(), key)}


def _read_credentials(path: str) -> str:
    """Return ``user:password``, quoted for a URL; empty without a readable file, which `checks` reports."""
    try:
        user, _, password = Path(path).read_text(encoding="utf-8").split("\n", 1)[0].strip().partition(":")
    except (OSError, ValueError):
        return ""
    return f"{quote(user, safe='')}:{quote(password, safe='')}"
