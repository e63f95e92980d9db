"""The end of the host phase: every file as it was before, and nothing of ours left."""

from __future__ import annotations

from collections.abc import Iterable

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.facts.originals import ABSENT, FILE, HOME, STORE, Original
from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts import codes, originals, prerequisites
from gpu_provision.hosts.holds import hold_changes
from gpu_provision.hosts.operations import PATH, rebuild_initramfs
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.telling import Commands, note, refuse
from gpu_provision.model.findings import Finding

SECTIONS = ("system", "kernel", "nouveau", "packages", "holds", "originals")

_VERBS = {FILE: "restored", ABSENT: "removed"}

# What has to be told that files are others now; where a program is not there, nobody needs it.
_RELOADS = (
    ("/etc/systemd/system/", "! command -v systemctl >/dev/null || systemctl daemon-reload"),
    ("/etc/udev/rules.d/", "! command -v udevadm >/dev/null || udevadm control --reload || :"),
)


@operation()
def originals_restored() -> Commands:
    """Make every file that operations changed as it was before the first change, to the byte; then forget them.

    Files that were not there are removed, and directories that were made for them, unless others use them. An
    initramfs that was made of restored files is made anew. Packages that we hold are released. Kernel modules
    stay loaded.
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
        yield StringCommand(f"{PATH}; {command}")
    yield originals.restore(followups(record))


def words(record: HostRecord) -> tuple[str, ...]:
    """Return in words what is restored; where every file is as it was, what is kept of it is removed."""
    changed = tuple(f"{_VERBS[each.kind]} {each.path}" for each in _differing(record) if each.kind in _VERBS)
    return (*hold_changes(record, held=False).words, *changed) or (f"removed {HOME}",)


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


def not_root(name: str) -> Finding:
    """Return the error about originals that the user who connects cannot read."""
    return Finding(
        code=codes.NOT_ROOT,
        what="what was kept of this host's files can be read by root alone",
        where=name,
        evidence=STORE,
        fix="connect as root, or set sudo: true in the inventory's ssh section",
    )
