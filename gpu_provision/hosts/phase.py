"""The host phase as one pyinfra deploy, for deploy files and for our own runs alike."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyinfra.api.deploy import deploy
from pyinfra.context import host

from gpu_provision.hosts import barrier, operations, teardown
from gpu_provision.hosts.runtime_config import Wish, wanted_pattern
from gpu_provision.hosts.runtime_operation import runtime_imports
from gpu_provision.model.expectation import Expectation
from gpu_provision.model.inventory import HostPrerequisites


@deploy("Host prerequisites")
def host_prerequisites() -> None:
    """Make true on a GPU host what must be true before any container runs.

    Reads ``host.data.host_prerequisites``, a dict with the keys of the inventory's ``host_prerequisites``;
    without it the defaults apply. With ``host.data.gpu_expected``, which inventories of ours have, the host is
    judged first, and one with errors is left as it is.
    Does nothing on clusters and on nodes that an inventory declares without a GPU; with ``host.data.gpu_judge_only``
    these are judged, too.
    """
    settings = HostPrerequisites(**{**asdict(HostPrerequisites()), **declared()})
    judge_only = bool(host.data.get("gpu_judge_only"))
    if not settings.enabled or not (is_gpu_host() or judge_only):
        return
    if host.data.get("gpu_expected"):
        operations.preflight(name="Preflight", expected=host.data.gpu_expected)
    if not is_gpu_host():
        return
    operations.kernel_modules(
        name="Kernel modules loaded now and at boot",
        names=tuple(settings.kernel_modules),
    )
    operations.nouveau(name="nouveau kept away", blacklisted=settings.blacklist_nouveau)
    operations.packages_held(name="Kernel and driver packages held", held=settings.hold_packages)
    operations.settings(
        name="System settings",
        sysctls=settings.sysctls,
        dev_char_symlinks=settings.dev_char_symlinks,
    )
    wish = Wish.of(settings.runtime_imports)
    if pattern := wanted_pattern(wish, expected()):
        runtime_imports(
            name="Container runtime imports the toolkit's drop-in", pattern=pattern, insist=wish is Wish.ALWAYS
        )


@deploy("Host teardown")
def host_teardown() -> None:
    """Make every file that host operations changed as it was before the first of them; nothing is unloaded.

    Does nothing on clusters, and on hosts that nothing was ever changed on.
    """
    if barrier.GROUP not in host.groups:
        teardown.originals_restored(name="Files as they were")


def expected() -> Expectation | None:
    """Return what the host's inventory expects of it; None without an inventory of ours."""
    data = host.data.get("gpu_expected")
    return Expectation.of(data) if data else None


def declared() -> dict[str, Any]:
    """Return what the host's inventory says about its prerequisites."""
    return dict(host.data.get("host_prerequisites") or {})


def is_gpu_host() -> bool:
    """Return whether this host is a machine with GPUs, or might be: without an inventory nobody knows."""
    if barrier.GROUP in host.groups:
        return False
    return "gpu" in host.groups or not host.data.get("gpu_inventory")
