"""Proxies that some part of the system is configured to use. Credentials stay on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.hosts.facts.parser import SectionOutput


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxy settings by the file that has them; no value holds a user's name or password."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, *names: str) -> tuple[str, ...]:
        """Return the values of settings by name, upper or lower case, each once."""
        wanted = {name.lower() for name in names}
        found = (value for file in self.settings.values() for name, value in file.items() if name.lower() in wanted)
        return tuple(dict.fromkeys(value for value in found if value))


def read_proxies(output: SectionOutput) -> Proxies:
    """Read the section's lines."""
    found: dict[str, dict[str, str]] = {}
    for line in output.all("setting"):
        path, _, text = line.partition(":")
        if text.strip().startswith(("#", "//")):
            continue
        for name, value in _assignments(text):
            found.setdefault(path, {})[name] = without_credentials(value)
    return Proxies(found)


def without_credentials(value: str) -> str:
    """Return a proxy's address without user name and password, however it is written."""
    return re.sub(r"^([a-z0-9+.-]+://)?\S*@", lambda found: found[1] or "", value)


def _assignments(text: str) -> list[tuple[str, str]]:
    """Read shell assignments, systemd's ``Environment=``, dnf's ``proxy=`` and apt's ``Acquire::http::Proxy``."""
    apt = re.search(r'Acquire::(https?)::Proxy[^"]*"([^"]*)"', text, re.IGNORECASE)
    if apt:
        return [(f"{apt[1].lower()}_proxy", apt[2])]
    dnf = re.fullmatch(r"\s*proxy\s*=\s*(\S*)\s*", text)
    if dnf:
        return [("http_proxy", dnf[1])]
    return re.findall(r"(?:\b|CONTAINERD_)((?:https?|ftp|no|all)_proxy)=[\"']?([^\"'\s]*)", text, re.IGNORECASE)
