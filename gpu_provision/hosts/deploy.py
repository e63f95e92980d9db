"""The host phase as one pyinfra deploy, for deploy files and for our own runs alike."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyinfra.api.deploy import deploy
from pyinfra.context import host, state

from gpu_provision.hosts import connection, gate
from gpu_provision.hosts.changes.headers import is_compiled_here
from gpu_provision.hosts.changes.runtime_config import Wish, wanted_pattern
from gpu_provision.hosts.changes.runtime_environment import Proxy
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.gpu_host import RECORD
from gpu_provision.hosts.maintenance import MAINTENANCE, Maintenance
from gpu_provision.hosts.operations import (
    driver,
    modules,
    resources,
    teardown,
)
from gpu_provision.hosts.operations.runtime import runtime_environment, runtime_imports
from gpu_provision.hosts.reboot import rebooted
from gpu_provision.model.hosts import Expectation, HostPrerequisites, Reboot


@deploy("Host prerequisites")
def host_prerequisites(maintenance: Maintenance | None = None) -> None:
    """Make true on a GPU host what must be true before any container runs.

    Reads ``host.data.host_prerequisites``, a dict with the keys of the inventory's ``host_prerequisites``;
    without it the defaults apply. With ``host.data.gpu_expected``, which inventories of ours have, the host is
    judged first, and one with errors is left as it is.
    What is neither declared nor of ours to take back is no operation.
    Does nothing on clusters and, where pyinfra's inventory has a group ``gpu``, on hosts outside of it; with
    ``host.data.gpu_judge_only`` these are judged, too.

    Args:
        maintenance: Cordons and drains nodes around reboots; without one, no host that a kubelet runs on is rebooted.
    """
    _keep_trouble_to_the_host()
    host.connector_data.setdefault(MAINTENANCE, maintenance)
    settings = HostPrerequisites(**{**asdict(HostPrerequisites()), **declared()})
    judge_only = bool(host.data.get("gpu_judge_only"))
    if not settings.enabled or not (is_gpu_host() or judge_only):
        return
    if host.data.get("gpu_expected"):
        modules.preflight(name="Preflight", expected=host.data.gpu_expected)
    if not is_gpu_host():
        return
    modules.kernel_modules(
        name="Kernel modules loaded now and at boot",
        modules=tuple(settings.kernel_modules),
    )
    modules.nouveau(name="nouveau kept away", blacklisted=settings.blacklist_nouveau)
    known: HostRecord | None = host.connector_data.get(RECORD)
    _kernel_headers(settings, known)
    modules.packages_held(name="Kernel and driver packages held", held=settings.hold_packages)
    modules.settings(
        name="System settings",
        sysctls=settings.sysctls,
        dev_char_symlinks=settings.dev_char_symlinks,
    )
    _resources(settings, known)
    _persistence_mode(settings, known)
    if settings.proxy or settings.ca_certificates or known is None or known.environment.files:
        runtime_environment(
            name="Container runtime's proxy and trusted certificates",
            proxy=Proxy(**settings.proxy),
            certificates=tuple(settings.ca_certificates),
        )
    wish = Wish.of(settings.runtime_imports)
    if pattern := wanted_pattern(wish, expected()):
        runtime_imports(
            name="Container runtime imports the toolkit's drop-in", pattern=pattern, insist=wish is Wish.ALWAYS
        )
    if settings.reboot == Reboot.IF_REQUIRED and not judge_only:
        rebooted(  # last: it takes the host away, and whatever came before may want it
            name="Rebooted where something needs it",
            nouveau_unwanted=settings.blacklist_nouveau,
            max_parallel=settings.max_parallel_reboots,
            patience=settings.reboot_timeout,
            drain=declared().get("drain"),
        )


def _kernel_headers(settings: HostPrerequisites, known: HostRecord | None) -> None:
    if settings.kernel_headers is True or known is None or is_compiled_here(known):
        driver.kernel_headers(
            name="Kernel headers", mode=settings.kernel_headers, expected=host.data.get("gpu_expected")
        )


def _resources(settings: HostPrerequisites, known: HostRecord | None) -> None:
    if settings.hugepages or known is None or known.hugepages.own_file is not None:
        resources.hugepages(name="Huge pages reserved", counts=settings.hugepages)
    if settings.limits or known is None or known.limits.files:
        resources.limits(name="Limits of containers", values=settings.limits, reload=_may_reload(settings))


def _persistence_mode(settings: HostPrerequisites, known: HostRecord | None) -> None:
    if known is None or known.driver.on_host or known.persistence.enabled:
        driver.persistence_mode(
            name="Driver stays initialized", on=settings.persistence_mode, expected=host.data.get("gpu_expected")
        )


@deploy("Host teardown")
def host_teardown() -> None:
    """Make every file that host operations changed as it was before the first of them; nothing is unloaded.

    With ``host.data.gpu_expected``, which inventories of ours have, what the container toolkit has left goes as well.
    Does nothing on clusters, and on hosts that nothing was ever changed on.
    """
    _keep_trouble_to_the_host()
    if gate.GROUP in host.groups:
        return
    teardown.originals_restored(name="Files as they were")
    wanted = expected()
    if wanted and wanted.toolkit_dir and is_gpu_host():
        teardown.toolkit_removed(name="Container toolkit's programs", install_dir=wanted.toolkit_dir)


def _keep_trouble_to_the_host() -> None:
    connection.disable_questions_without_terminal()
    connection.isolate_failures(host, host.log)


def expected() -> Expectation | None:
    """Return what the host's inventory expects of it; None without an inventory of ours."""
    data = host.data.get("gpu_expected")
    return Expectation.of(data) if data else None


def _may_reload(settings: HostPrerequisites) -> bool:
    """Return whether systemd may read its units anew without taking GPUs from containers; see dev_char_symlinks."""
    wanted = expected()
    return settings.dev_char_symlinks or wanted is None or wanted.cdi


def declared() -> dict[str, Any]:
    """Return what the host's inventory says about its prerequisites."""
    return dict(host.data.get("host_prerequisites") or {})


def is_gpu_host() -> bool:
    """Return whether this host is a machine with GPUs: the group ``gpu`` says so, where pyinfra's inventory has one."""
    if gate.GROUP in host.groups:
        return False
    return "gpu" in host.groups or not (host.data.get("gpu_inventory") or "gpu" in state.inventory.groups)
