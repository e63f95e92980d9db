"""Changes files of a host so that nothing that was there is lost: every original is kept, and comes back on teardown.

Before the first change of a path, what is there is kept under /var/lib/gpu-provision/originals with its mode, owner
and time, or it is written down that nothing was there. Later changes leave what is kept alone. All commands are POSIX
shell, and need root as the files do. One command at a time changes a host, of all runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyinfra.api.command import StringCommand

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import FileLines
from gpu_provision.hosts.operations import Commands, record_changes, show_diff
from gpu_provision.hosts.scripts import HOME


@dataclass(frozen=True, slots=True)
class HostChange:
    """One change of a host."""

    description: str  # the change in words; empty for bookkeeping, which is reported as no change
    commands: tuple[str | StringCommand, ...]  # shell commands that make it, in order
    files: Mapping[str, tuple[FileLines, FileLines]]  # path -> lines, before and after, of the files that it changes


def change(description: str, *commands: str) -> HostChange:
    """Return a change that commands make."""
    return HostChange(description, commands, {})


def change_files(description: str, files: Mapping[str, tuple[FileLines, FileLines]], *commands: str) -> HostChange:
    """Return a change of files, with commands for afterwards."""
    writes = (write_with_backup(path, lines) for path, (_, lines) in files.items())
    return HostChange(description, (*writes, *commands), files)


def make_changes(changes: Iterable[HostChange], *sections: str) -> Commands:
    """Record changes, show differences of files if the user asked for that, and yield the commands.

    Sections are what has to be read again afterwards; all if none is named.
    """
    changes = tuple(changes)
    record_changes([each.description for each in changes if each.description], *sections)
    for each in changes:
        for path, (old, new) in each.files.items():
            show_diff(path, old, new)
    for each in changes:
        yield from (StringCommand(command) if isinstance(command, str) else command for command in each.commands)


def _with_functions(command: str) -> str:
    return f"{scripts.assign()}{scripts.load('backups.sh')}{command}"


def write_with_backup(path: str, content: FileLines, *, mode: str = "") -> StringCommand:
    """Return the command that puts a file in place in one step, or removes it, and keeps what was there.

    Without a mode, such as ``600``, that of the file that is there stays; a new one gets 644.
    """
    quoted = shlex.quote(path)
    if content is None:
        return StringCommand(_with_functions(f"alone && keep {quoted} && rm -f {quoted}"))
    lines = f"printf '%s\\n' {shlex.join(content)}" if content else ":"
    return StringCommand(_with_functions(f"{lines} | put {quoted} '{mode}'"))


def restore(after: Sequence[str] = ()) -> StringCommand:
    """Return the command that makes every file as it was, lets the system know, and then forgets the originals.

    If one cannot be restored, the others are all the same, the originals stay, and the command fails.
    """
    reloads = [f"{{ {command}\n}} 9<&-" for command in after]  # what they leave running does not hold the lock
    return StringCommand(_with_functions(" &&\n".join(["alone", "restore_all", *reloads, f"rm -rf {HOME}"])))


def run_exclusively(command: str) -> str:
    """Return a shell command that waits until no other run changes files of the host, for 10 minutes at most."""
    return _with_functions(f"alone && {{ {command}; }}")
