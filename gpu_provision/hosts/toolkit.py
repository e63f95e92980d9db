"""Takes back what the container toolkit has left on a host: its container does not remove the programs by itself."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gpu_provision.facts.toolkit_remains import ToolkitRemains
from gpu_provision.hosts import codes, originals
from gpu_provision.hosts.facts import GpuToolkitRemains
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.telling import Commands, note, tell
from gpu_provision.model.findings import Finding, Severity

_NAMED = 3


@operation()
def toolkit_removed(install_dir: str) -> Commands:
    """Remove the toolkit's programs, and the directories of the stack that are empty then.

    Nothing is removed while a container, a process or a container runtime's configuration needs the programs: a
    container that was started with them could not be ended. Files of others stay, and the directories they are in.

    Args:
        install_dir: As the inventory's ``toolkit.install_dir``.
    """
    record = read(("runtimes",))
    runtimes = record.runtimes if record else ()
    configs = {path for each in runtimes for path in (each.config, each.target, *each.drop_ins) if path}
    found = host.get_fact(GpuToolkitRemains, install_dir=install_dir, configs=tuple(sorted(configs)))
    if found is None or not found.files:
        host.noop("nothing of the container toolkit is on this host")
        return
    if found.uses or not found.is_sure:
        tell(left(install_dir, found, host.name))
        return
    note(words(found, install_dir))
    yield StringCommand(originals.alone(removal(found)))


def words(found: ToolkitRemains, install_dir: str) -> tuple[str, ...]:
    """Return in words what is removed."""
    folders = f", {len(found.hollow)} directories" if found.hollow else ""
    return (f"container toolkit removed from {install_dir}/toolkit: {len(found.files)} files{folders}",)


def removal(found: ToolkitRemains) -> str:
    """Return the shell command that removes it; a directory that somebody uses by now stays."""
    folders = "".join(f"; rmdir {shlex.quote(path)} 2>/dev/null" for path in found.hollow)
    return f"rm -f {shlex.join(found.files)} && {{ :{folders}; : ; }}"


def left(install_dir: str, found: ToolkitRemains, name: str) -> Finding:
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
