"""Proxies that some part of the system is configured to use. Credentials stay on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.hosts.facts.section import Said, Section

_SERVICES = "containerd crio docker kubelet k3s k3s-agent rke2-server rke2-agent"
_FILES = (
    "/etc/environment /etc/sysconfig/proxy /etc/default/docker /etc/sysconfig/docker /etc/default/k3s "
    "/etc/default/rke2-server /etc/default/rke2-agent /etc/sysconfig/rke2-server /etc/sysconfig/rke2-agent "
    "/etc/systemd/system/k3s.service.env /etc/systemd/system/k3s-agent.service.env "
    "/etc/gpu-provision/runtime-proxy.env "
    "/var/snap/microk8s/current/args/containerd-env /etc/dnf/dnf.conf /etc/yum.conf /etc/apt/apt.conf"
)


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxy settings by the file that has them; no value holds a user's name or password."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, *names: str) -> tuple[str, ...]:
        """Return the values of settings by name, upper or lower case, each once."""
        wanted = {name.lower() for name in names}
        found = (value for file in self.settings.values() for name, value in file.items() if name.lower() in wanted)
        return tuple(dict.fromkeys(value for value in found if value))


# What stands before an @ is a user's name and password: it is taken out here, so that it never leaves the host.
SCRIPT = rf"""
for service in {_SERVICES}; do
  for file in "/etc/systemd/system/$service.service.d"/*.conf; do [ -r "$file" ] && set -- "$@" "$file"; done
done
for file in {_FILES} /etc/apt/apt.conf.d/* /etc/systemd/system.conf.d/*.conf; do
  [ -r "$file" ] && set -- "$@" "$file"
done
words='(https?|ftp|no|all)_proxy|^[[:space:]]*proxy[[:space:]]*=|Acquire::https?::Proxy'
[ $# -gt 0 ] && grep -iE "$words" "$@" /dev/null | sed -E -e 's#://[^"[:space:]]*@#://#g' \
  -e 's#([=" ])[^"=@[:space:]/]*:[^"@[:space:]]*@#\1#g' -e 's/^/setting /'
"""


def read(said: Said) -> Proxies:
    """Read the section."""
    found: dict[str, dict[str, str]] = {}
    for line in said.all("setting"):
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


PROXIES_SECTION = Section("proxies", SCRIPT, read)
