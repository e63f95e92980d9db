"""The end of the host phase: every file as it was before, and nothing of ours left."""

from __future__ import annotations

from collections.abc import Iterable

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.facts.environment import DROP_IN, PROXY_FILE, STORES
from gpu_provision.facts.originals import ABSENT, FILE, HOME, STORE, Original
from gpu_provision.facts.record import HostRecord
from gpu_provision.facts.runtimes import ContainerRuntime
from gpu_provision.hosts import codes, originals, prerequisites, runtime_script
from gpu_provision.hosts.detached import Outcome, Result
from gpu_provision.hosts.following import followed
from gpu_provision.hosts.headers import remove
from gpu_provision.hosts.holds import hold_changes
from gpu_provision.hosts.operations import PATH, rebuild_initramfs
from gpu_provision.hosts.persistence import disable
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.runtime_shell import longest_seconds
from gpu_provision.hosts.telling import Commands, note, refuse
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
    record = read(SECTIONS)
    if record is None:
        yield from refuse(prerequisites.unreadable(host.name))
        return
    if not record.originals.readable:
        yield from refuse(not_root(host.name))
        return
    if not record.originals.present:
        host.noop("nothing of ours is on this host")
        return
    note(words(record))
    for line in () if state.is_executing else words(record):
        host.log(f"Will be {line}")
    for command in hold_changes(record, held=False).commands:
        yield StringCommand(originals.alone(f"{PATH}; {command}"))
    if record.holds.installed:
        yield StringCommand(originals.alone(f"{PATH}; {remove(record.packages.manager, record.holds.installed)}"))
    if record.persistence.enabled:
        yield StringCommand(originals.alone(f"{PATH}; {disable(record.persistence.enabled)}"))
    runtime = restarted(record)
    restart = (f"{{ {runtime_script.restart(runtime, patience=PATIENCE)}\n}}",) if runtime else ()
    yield originals.restore((*followups(record), *restart))
    if runtime:
        yield followed(lambda name, result: runtime_down(runtime, name, result), longest_seconds(PATIENCE))


def words(record: HostRecord) -> tuple[str, ...]:
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
    return path.endswith(f"/{DROP_IN}") or any(path.startswith(f"{store.anchors}/") for store in STORES)


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
