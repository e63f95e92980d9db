"""The end of the host phase: every file as it was before, and nothing of the stack left."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.hosts.background_script import Outcome, Result, followed
from gpu_provision.hosts.changes import modules
from gpu_provision.hosts.changes.headers import remove
from gpu_provision.hosts.changes.holds import hold_changes
from gpu_provision.hosts.changes.persistence import disable
from gpu_provision.hosts.facts.backups import (
    ABSENT,
    FILE,
    HOME,
    STORE,
    Original,
)
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.runtime import ENVIRONMENT_DROP_IN, PROXY_FILE, STORES, ContainerRuntime
from gpu_provision.hosts.facts.toolkit import ToolkitRemains
from gpu_provision.hosts.findings import Commands, add_finding, fail, record_changes
from gpu_provision.hosts.gpu_host import GpuToolkitRemains, read_host
from gpu_provision.hosts.operations import backups
from gpu_provision.hosts.operations.modules import PATH, rebuild_initramfs
from gpu_provision.hosts.scripts.runtime import longest_seconds, restart_runtime
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity

SECTIONS = ("system", "kernel", "nouveau", "packages", "holds", "persistence", "runtimes", "kubernetes", "originals")
PATIENCE = 60
"""Seconds that a restarted runtime may take to answer."""

_VERBS = {FILE: "restored", ABSENT: "removed"}

# What has to be told that files are others now; where a program is not there, nobody needs it.
_RELOADS = (
    ("/etc/systemd/system/", "! command -v systemctl >/dev/null || systemctl daemon-reload"),
    ("/etc/udev/rules.d/", "! command -v udevadm >/dev/null || udevadm control --reload || :"),
    *((f"{store.anchors}/", f"{PATH}; ! command -v {store.program} >/dev/null || {store.command}") for store in STORES),
)


@operation()
def originals_restored() -> Commands:
    """Make every file that operations changed as it was before the first change, to the byte; then forget them.

    Files that were not there are removed, and directories that were made for them, unless others use them. An
    initramfs that was made of restored files is made anew. Packages that we hold are released, those that we
    installed are removed, units that we enabled are disabled. The container runtime is restarted if its files are
    restored, and has to answer. Kernel modules stay loaded.
    """
    record = read_host(SECTIONS)
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    if not record.originals.readable:
        yield from fail(not_root(host.name))
        return
    if not record.originals.present:
        host.noop("nothing of ours is on this host")
        return
    record_changes(restored_text(record))
    for line in () if state.is_executing else restored_text(record):
        host.log(f"Will be {line}")
    for command in hold_changes(record, held=False).commands:
        yield StringCommand(backups.alone(f"{PATH}; {command}"))
    if record.holds.installed:
        yield StringCommand(backups.alone(f"{PATH}; {remove(record.packages.manager, record.holds.installed)}"))
    if record.persistence.enabled:
        yield StringCommand(backups.alone(f"{PATH}; {disable(record.persistence.enabled)}"))
    runtime = restarted(record)
    restart = (f"{{ {restart_runtime(runtime, patience=PATIENCE)}\n}}",) if runtime else ()
    yield backups.restore((*followups(record), *restart))
    if runtime:
        yield followed(lambda name, result: runtime_down(runtime, name, result), longest_seconds(PATIENCE))


def restored_text(record: HostRecord) -> tuple[str, ...]:
    """Return in words what is restored; where every file is as it was, what is kept of it is removed."""
    changed = tuple(f"{_VERBS[each.kind]} {each.path}" for each in _differing(record) if each.kind in _VERBS)
    disabled = record.persistence.enabled
    removed = record.holds.installed
    packages = (f"packages removed: {', '.join(removed)}",) if removed else ()
    units = (f"units disabled: {', '.join(disabled)}",) if disabled else ()
    runtime = restarted(record)
    restart = (f"{runtime.kind} restarted",) if runtime else ()
    return (*hold_changes(record, held=False).words, *packages, *units, *changed, *restart) or (f"removed {HOME}",)


def restarted(record: HostRecord) -> ContainerRuntime | None:
    """Return the container runtime if it has to be restarted to run with what is restored; None if not."""
    runtime = record.cri
    if runtime is None:
        return None
    own = {runtime.config, runtime.target, PROXY_FILE}
    return runtime if any(each.path in own or _is_read_at_start(each.path) for each in _differing(record)) else None


def _is_read_at_start(path: str) -> bool:
    """Return whether a runtime reads a file when it starts: our proxies in its unit, and certificates."""
    return path.endswith(f"/{ENVIRONMENT_DROP_IN}") or any(path.startswith(f"{store.anchors}/") for store in STORES)


def followups(record: HostRecord) -> tuple[str, ...]:
    """Return the shell commands that let the system know what was restored."""
    paths = [each.path for each in _differing(record)]
    reloads = [f"{{ {command}; }}" for prefix, command in _RELOADS if any(path.startswith(prefix) for path in paths)]
    in_initramfs = any(path.startswith("/etc/modprobe.d/") for path in paths)
    if in_initramfs and record.nouveau.initramfs and record.nouveau.initramfs_tool:
        reloads.append(rebuild_initramfs(record.nouveau.initramfs_tool, record.kernel.running))
    return tuple(reloads)


def _differing(record: HostRecord) -> Iterable[Original]:
    return (each for each in record.originals.kept if each.differs)


def runtime_down(runtime: ContainerRuntime, name: str, result: Result | None) -> Finding | None:
    """Return what went wrong with a runtime that was restarted with its files as they were; None if it answers."""
    match result.outcome if result else Outcome.RUNNING:
        case Outcome.CHANGED:
            return None
        case Outcome.NO_TOOL:
            what, code, severity = "cannot be restarted here", codes.RUNTIME_LEFT, Severity.WARNING
            consequence, fix = "it runs with what was there before until its next start", "restart it"
        case _:
            what, code, severity = "does not answer after its restart", codes.RUNTIME_DOWN, Severity.ERROR
            consequence, fix = "the kubelet starts no pods", f"journalctl -u {runtime.unit or runtime.kind}, repair it"
    return Finding(
        code=code,
        what=f"all files are as they were, and {runtime.kind} {what}",
        where=name,
        evidence=result.evidence if result else "",
        consequence=consequence,
        fix=fix,
        severity=severity,
    )


def not_root(name: str) -> Finding:
    """Return the error about originals that the user who connects cannot read."""
    return Finding(
        code=codes.NOT_ROOT,
        what="what was kept of this host's files can be read by root alone",
        where=name,
        evidence=STORE,
        fix="connect as root, or set sudo: true in the inventory's ssh section",
    )


_NAMED = 3


@operation()
def toolkit_removed(install_dir: str) -> Commands:
    """Remove the toolkit's programs, and the directories of the stack that are empty then.

    Nothing is removed while a container, a process or a container runtime's configuration needs the programs: a
    container that was started with them could not be ended. Files of others stay, and the directories they are in.

    Args:
        install_dir: As the inventory's ``toolkit.install_dir``.
    """
    record = read_host(("runtimes",))
    runtimes = record.runtimes if record else ()
    configs = {path for each in runtimes for path in (each.config, each.target, *each.drop_ins) if path}
    found = host.get_fact(GpuToolkitRemains, install_dir=install_dir, configs=tuple(sorted(configs)))
    if found is None or not found.files:
        host.noop("nothing of the container toolkit is on this host")
        return
    if found.uses or not found.is_sure:
        add_finding(toolkit_left(install_dir, found, host.name))
        return
    record_changes(toolkit_removal_text(found, install_dir))
    yield StringCommand(backups.alone(toolkit_removal(found)))


def toolkit_removal_text(found: ToolkitRemains, install_dir: str) -> tuple[str, ...]:
    """Return in words what is removed."""
    folders = f", {len(found.hollow)} directories" if found.hollow else ""
    return (f"container toolkit removed from {install_dir}/toolkit: {len(found.files)} files{folders}",)


def toolkit_removal(found: ToolkitRemains) -> str:
    """Return the shell command that removes it; a directory that somebody uses by now stays."""
    folders = "".join(f"; rmdir {shlex.quote(path)} 2>/dev/null" for path in found.hollow)
    return f"rm -f {shlex.join(found.files)} && {{ :{folders}; : ; }}"


def toolkit_left(install_dir: str, found: ToolkitRemains, name: str) -> Finding:
    """Return the warning about programs that stay."""
    more = f" and {len(found.uses) - _NAMED} more" if len(found.uses) > _NAMED else ""
    seen = "; ".join(found.uses[:_NAMED]) + more
    return Finding(
        code=codes.TOOLKIT_LEFT,
        what=f"the container toolkit's programs stay in {install_dir}/toolkit",
        where=name,
        evidence=seen or "only root sees whether containers still use them",
        consequence="a container that was started with them could not be ended without them" if seen else "",
        fix="end what uses them, and run again" if seen else "connect as root, or set sudo: true in the ssh section",
        severity=Severity.WARNING,
    )
