"""Kernel headers that are installed, and packages that are held, decided from the host's record alone."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.context import host, state
from pyinfra.facts.server import Command

from gpu_provision.hosts import errors
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.packages import Package
from gpu_provision.hosts.operations import (
    PATH,
    Commands,
    fail_host,
    host_operation,
    read_host,
    record_changes,
    require_host,
)
from gpu_provision.hosts.operations.backups import HostChange, change, make_changes, run_exclusively
from gpu_provision.hosts.operations.driver import has_own_driver
from gpu_provision.hosts.scripts import HEADERS_LOG, HELD_FILE, HOME, INSTALLED_FILE
from gpu_provision.model.findings import Finding, RunFailedError

_TOOLS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    resources.files(__package__).joinpath("packages.toml").read_text(encoding="utf-8")
)


def _tool(record: HostFacts) -> str:
    """Return what changes packages on a host, by its name in packages.toml; empty for nothing."""
    known = (tool for tool in record.holds.tools if _TOOLS.get(tool, {}).get("manager") == record.packages.manager)
    return min(known, key=list(_TOOLS).index, default="")


def is_compiled_here(record: HostFacts) -> bool:
    """Return whether a host compiles its driver itself: by DKMS, or by NVIDIA's installer."""
    by_package = record.packages.find_installed("*nvidia*dkms*")
    return bool(record.driver.dkms or by_package or "/usr/bin/nvidia-uninstall" in record.driver.programs)


def kernels_without_headers(record: HostFacts) -> list[str]:
    """Return those of the kernel that runs and the one that boots next that have no headers."""
    following = record.kernels.next
    releases = dict.fromkeys((record.kernel.running, following.release if following else record.kernel.running))
    return [release for release in releases if release not in record.kernels.with_headers]


def headers_package(record: HostFacts, release: str) -> str:
    """Return the package with a kernel's headers, by its exact version; empty if its name is not known."""
    match _tool(record):
        case "apt-mark":
            return f"linux-headers-{release}"
        case "dnf":
            return f"kernel-devel-uname-r = {release}"
        case "zypper":
            # ``uname -r`` leaves out which build of the kernel this is, its own package says it
            version, _, flavor = release.rpartition("-")
            builds = (each.version for each in record.packages.find_installed(f"kernel-{flavor}"))
            found = next((build for build in builds if re.fullmatch(rf"{re.escape(version)}(\.\d+)?", build)), "")
            return f"kernel-{flavor}-devel = {found}" if found else ""
    return ""


def install_headers(record: HostFacts, packages: Sequence[str]) -> str:
    """Return the shell command that installs packages and writes down which ones are new; it does not fail.

    Package lists are refreshed only if these packages are not in them.
    """
    tool, listed = _TOOLS[_tool(record)], _TOOLS[record.packages.manager]["list"]
    command = tool["install"].format(names=shlex.join(packages))
    return f"""mkdir -p {HOME} {HEADERS_LOG.rpartition("/")[0]}
before=$({listed})
{{ {command} || {{ {tool["refresh"]} && {command}; }}; }} >{HEADERS_LOG} 2>&1 </dev/null || :
{{ {listed}; }} | grep -vxF "$before" >>{INSTALLED_FILE} || :"""


def remove_packages(manager: str, packages: Sequence[str]) -> str:
    """Return the shell command that removes packages that we installed; one that others need by now stays."""
    return f"{_TOOLS[manager]['remove'].format(names=shlex.join(packages))} || :"


def headers_missing(record: HostFacts, host: str, kernels: Sequence[str], log: Sequence[str]) -> Finding:
    """Return the error about kernels that there are no headers for."""
    tool = _TOOLS[_tool(record)]
    said = [line.strip() for line in log if line.strip()]
    told = next((line for line in said if line.startswith(("E:", "Error", "No provider"))), "")
    evidence = re.sub(r"://[^/@\s]+@", "://", told or (said[-1] if said else f"{tool['installer']} said nothing"))
    newer_kernel = tool["newer_kernel"]
    return errors.finding("headers.missing", host, evidence, kernels=", ".join(kernels), newer_kernel=newer_kernel)


KERNELS = ("linux-image-*", "linux-headers-*", "linux-modules-*", "kernel", "kernel-*")

DRIVERS = ("*nvidia*", "cuda-drivers*")

TOOLKIT = ("nvidia-container-*", "libnvidia-container*")
"""Patterns of packages that are held, and of those that are not though they look so: no driver depends on them."""


def hold_changes(record: HostFacts, host: str, *, held: bool) -> Iterator[HostChange]:
    """Yield what is missing. Raises RunFailedError if nothing on this host can hold packages.

    Packages that are kept by anything, such as the user's own hold, stay as they are and are not listed.
    """
    apart = set(record.packages.find_installed(*TOOLKIT))
    matching = record.packages.find_installed(*KERNELS, *DRIVERS) if held else ()
    watched = {package.name: package for package in matching if package not in apart}
    hold = sorted(name for name, package in watched.items() if not record.packages.is_kept(package))
    ours, tool = record.holds.ours, _tool(record)
    if tool == "dnf" and "versionlock" not in record.holds.tools:  # its plugin
        tool = ""
    if hold and not tool:
        evidence, install = "no apt-mark, zypper or dnf that goes with its package manager", ""
        if "dnf" in record.holds.tools:
            evidence = "dnf has no versionlock plugin: no /etc/dnf/plugins/versionlock.conf"
            install = "dnf install python3-dnf-plugin-versionlock, or "
        raise RunFailedError(errors.finding("holds", host, evidence, install=install))
    release = [name for name in ours if name not in watched and tool and _is_locked(record, name)]
    listed = sorted({*(name for name in ours if name in watched), *hold})
    write = f"printf '%s\\n' {shlex.join(listed)} >{HELD_FILE}.new && mv -f {HELD_FILE}.new {HELD_FILE}"
    write = f"mkdir -p {HOME} && {write}" if listed else f"rm -f {HELD_FILE}"
    commands = [run_exclusively(f"{PATH}; {write}")] if set(listed) != set(ours) else []

    def command(what: str, names: Sequence[str]) -> str:
        return run_exclusively(f"{PATH}; {_TOOLS[tool][what].format(names=shlex.join(names))}")

    if hold:  # listed before they are held, in case of an interruption
        yield change(f"packages held: {', '.join(hold)}", *commands, command("hold", hold))
        commands = []
    if release:
        yield change(f"packages released: {', '.join(release)}", command("release", release), *commands)
        commands = []
    if commands:
        yield change("", *commands)


def _is_locked(record: HostFacts, name: str) -> bool:
    """Return whether a package is held; one that is not installed any more may be locked still."""
    packages = replace(record.packages, unattended_exceptions=())
    installed = packages.find_installed(name) or (Package(name, ""),)
    return any(packages.is_kept(package) for package in installed)


@host_operation
def kernel_headers(mode: bool | str = "auto", expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001 - as above
    """Have headers of the running kernel, and of the one that boots next, where the driver is compiled on the host.

    Installed by the host's package manager in the kernel's exact version. ``auto`` is where the host has a driver of
    its own, by DKMS or NVIDIA's installer; True in any case; False nowhere. Headers that are there stay.
    """
    record = require_host(("system", "kernel", "kernels", "packages", "driver", "holds"))
    compiled = is_compiled_here(record) and has_own_driver(record, expected)
    wanted = mode is True or (mode == "auto" and compiled)
    kernels = kernels_without_headers(record) if wanted else []
    packages = [headers_package(record, release) for release in kernels]
    if not all(packages):
        manager = record.packages.manager or "no package manager"
        words = {"manager": manager, "running": record.kernel.running}
        fail_host("headers.unknown", kernels=", ".join(kernels), **words)
    changes = [f"kernel headers installed: {', '.join(kernels)}"] if kernels else []
    record_changes(changes, "system", "kernels", "packages", "holds", "originals")
    if not kernels:
        return
    yield StringCommand(run_exclusively(f"{PATH}; {install_headers(record, packages)}"))
    after = read_host(("kernel", "kernels")) if state.is_executing else None
    missing = [release for release in kernels if after and release not in after.kernels.with_headers]
    if missing:
        log: str = host.get_fact(Command, f"tail -n 20 {HEADERS_LOG} || :") or ""
        raise RunFailedError(headers_missing(record, host.name, missing, log.splitlines()))


@host_operation
def packages_held(held: bool = True) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Hold the installed kernel and driver packages against upgrades; or release those that gpu-provision holds.

    Uses apt-mark, zypper or dnf's versionlock plugin; a host with none of them fails (GP681). Packages that are held
    already, such as by an administrator, stay as they are, also when ``held`` is False.
    """
    record = require_host(("system", "kernel", "packages", "holds"))
    yield from make_changes(hold_changes(record, host.name, held=held), "packages", "holds")
