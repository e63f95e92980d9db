"""Shell scripts for hosts, as files that shellcheck reads, and the paths on hosts that gpu-provision writes."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import resources

HOME = "/var/lib/gpu-provision"
"""Directory of what lasts, until teardown."""

ORIGINALS = f"{HOME}/originals"
"""``list`` names every changed path once, with its kind; ``files`` holds the originals under their own paths."""

HELD_FILE = f"{HOME}/held-packages"
"""Names of packages that gpu-provision holds, one a line; holds of others are not in it."""

INSTALLED_FILE = f"{HOME}/installed-packages"
"""Names of packages that gpu-provision installed, one a line, as the package manager lists them."""

ENABLED_FILE = f"{HOME}/enabled-units"
"""Names of units that gpu-provision enabled, one a line."""

STATE = "/run/gpu-provision"
"""Directory of what lasts until the next boot."""

HUGEPAGE_ATTEMPTS = f"{STATE}/hugepages"
"""For each size: how many pages were asked for since the boot, and how many the kernel found room for."""

UNAWARE_KUBELETS = f"{STATE}/kubelets-before-hugepages"
"""Process id and start of each kubelet that ran while the number of huge pages changed."""

HEADERS_LOG = f"{STATE}/headers.log"
"""What the package manager printed last when it installed headers."""

WORK = f"{STATE}/runtime"
"""Directory of a background script, its process number and its result."""

MODULES_FILE = "/etc/modules-load.d/gpu-provision.conf"

NOUVEAU_FILE = "/etc/modprobe.d/gpu-provision-nouveau.conf"

SYSCTL_FILE = "/etc/sysctl.d/90-gpu-provision.conf"

LINKS_RULE = "/etc/udev/rules.d/71-gpu-provision-dev-char.rules"

LINKS_SCRIPT = "/etc/gpu-provision/dev-char-symlinks.sh"

HUGEPAGES_FILE = "/etc/tmpfiles.d/90-gpu-provision-hugepages.conf"

PROXY_FILE = "/etc/gpu-provision/runtime-proxy.env"
"""Holds the proxies, with credentials if they have any: for root alone."""

UNIT_DIRECTORY = "/etc/systemd/system"

PERSISTENCE_UNIT = "gpu-provision-persistence"

PERSISTENCE_FILE = f"{UNIT_DIRECTORY}/{PERSISTENCE_UNIT}.service"

ENVIRONMENT_DROP_IN = "90-gpu-provision-proxy.conf"
"""Name of the file that has a unit of systemd read PROXY_FILE."""

LIMITS_DROP_IN = "90-gpu-provision-limits.conf"

CERTIFICATE_PREFIX = "gpu-provision-"
"""Of the names of trusted certificates."""

VARIABLES = {name.lower(): value for name, value in list(globals().items()) if name.isupper()}


@cache
def load(name: str) -> str:
    """Return the text of a script."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def assign(**variables: str) -> str:
    """Return shell assignments: of variables, and of all paths in `gpu_provision.hosts.scripts`."""
    values = {**VARIABLES, **variables}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
