"""The end of the host phase: every file as it was before, and nothing of the stack left."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.context import host, state

from gpu_provision.hosts import errors
from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult, restart_runtime, wait_for_result
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.packages import Original, ToolkitRemains, parse_toolkit, toolkit_command
from gpu_provision.hosts.facts.runtime import STORES, ContainerRuntime
from gpu_provision.hosts.operations import (
    PATH,
    Commands,
    add_warning,
    fail_host,
    host_operation,
    read_host,
    record_changes,
    require_host,
)
from gpu_provision.hosts.operations.backups import restore, run_exclusively
from gpu_provision.hosts.operations.driver import disable, rebuild_initramfs
from gpu_provision.hosts.operations.packages import hold_changes, remove_packages
from gpu_provision.hosts.scripts import ENVIRONMENT_DROP_IN, HOME, PROXY_FILE
from gpu_provision.model.findings import Finding
from gpu_provision.model.text import join_limited

SECTIONS = ("system", "kernel", "nouveau", "packages", "holds", "persistence", "runtimes", "kubernetes", "originals")
RESTART_TIMEOUT_SECONDS = 60
"""Seconds that a restarted runtime may take to answer."""

_VERBS = {"file": "restored", "absent": "removed"}

# What has to reload changed files; where the program is not there, nothing has to.
_RELOADS = (
    ("/etc/systemd/system/", "! command -v systemctl >/dev/null || systemctl daemon-reload"),
    ("/etc/udev/rules.d/", "! command -v udevadm >/dev/null || udevadm control --reload || :"),
    *((f"{store.anchors}/", f"{PATH}; ! command -v {store.program} >/dev/null || {store.command}") for store in STORES),
)


@host_operation
def restore_originals() -> Commands:
    """Make every file that operations changed as it was before the first change, to the byte; then forget them.

    Files that were not there are removed, and directories that were made for them, unless others use them. An
    initramfs that was made of restored files is rebuilt. Packages that gpu-provision holds are released, those that it
    installed are removed, units that we enabled are disabled. The container runtime is restarted if its files are
    restored, and has to answer. Kernel modules stay loaded.
    """
    record = require_host(SECTIONS)
    if not record.originals.readable:
        fail_host("originals")
    if not record.originals.present:
        host.noop("nothing of gpu-provision is on this host")
        return
    changes = describe_restore(record)
    record_changes(changes)
    for line in () if state.is_executing else changes:
        host.log(f"Will be {line}")
    for each in hold_changes(record, host.name, held=False):
        yield from each.commands
    if record.holds.installed:
        yield StringCommand(
            run_exclusively(f"{PATH}; {remove_packages(record.packages.manager, record.holds.installed)}")
        )
    if record.persistence.enabled:
        yield StringCommand(run_exclusively(f"{PATH}; {disable(record.persistence.enabled)}"))
    runtime = runtime_to_restart(record)
    restart = (f"{{ {restart_runtime(runtime, patience=RESTART_TIMEOUT_SECONDS)}\n}}",) if runtime else ()
    yield restore((*reload_commands(record), *restart))
    if runtime:
        yield wait_for_result(partial(restart_finding, runtime), RESTART_TIMEOUT_SECONDS)


def describe_restore(record: HostFacts) -> tuple[str, ...]:
    """Return in words what is restored; where every file is as it was, what is kept of it is removed."""
    words = [each.description for each in hold_changes(record, "", held=False) if each.description]
    if removed := record.holds.installed:
        words.append(f"packages removed: {', '.join(removed)}")
    if disabled := record.persistence.enabled:
        words.append(f"units disabled: {', '.join(disabled)}")
    words += [f"{_VERBS[each.kind]} {each.path}" for each in _changed_originals(record) if each.kind in _VERBS]
    if runtime := runtime_to_restart(record):
        words.append(f"{runtime.kind} restarted")
    return tuple(words) or (f"removed {HOME}",)


def runtime_to_restart(record: HostFacts) -> ContainerRuntime | None:
    """Return the container runtime if it has to be restarted to run with what is restored; None if not."""
    runtime = record.cri
    if runtime is None:
        return None
    own = {runtime.config, runtime.target, PROXY_FILE}
    anchors = tuple(f"{store.anchors}/" for store in STORES)  # certificates are read at the start
    paths = (each.path for each in _changed_originals(record))
    restarts = (path in own or path.endswith(f"/{ENVIRONMENT_DROP_IN}") or path.startswith(anchors) for path in paths)
    return runtime if any(restarts) else None


def reload_commands(record: HostFacts) -> tuple[str, ...]:
    """Return the shell commands that let the system know what was restored."""
    paths = [each.path for each in _changed_originals(record)]
    reloads = [f"{{ {command}; }}" for prefix, command in _RELOADS if any(path.startswith(prefix) for path in paths)]
    in_initramfs = any(path.startswith("/etc/modprobe.d/") for path in paths)
    if in_initramfs and record.nouveau.initramfs and record.nouveau.initramfs_tool:
        reloads.append(rebuild_initramfs(record.nouveau.initramfs_tool, record.kernel.running))
    return tuple(reloads)


def _changed_originals(record: HostFacts) -> Iterable[Original]:
    return (each for each in record.originals.kept if each.differs)


def restart_finding(runtime: ContainerRuntime, name: str, result: ScriptResult | None) -> Finding | None:
    """Return what went wrong with a runtime that was restarted with its files as they were; None if it answers."""
    outcome = result.outcome if result else ScriptOutcome.RUNNING
    if outcome is ScriptOutcome.CHANGED:
        return None
    entry = "restart.no-tool" if outcome is ScriptOutcome.NO_TOOL else "restart.dead"
    evidence = result.evidence if result else ""
    return errors.finding(entry, name, evidence, kind=runtime.kind, unit=runtime.unit or runtime.kind)


class GpuToolkitRemains(FactBase[ToolkitRemains | None]):
    """What the container toolkit has left on a host; None if it did not answer to the end."""

    def command(self, install_dir: str, configs: Sequence[str] = ()) -> str:
        """Return the shell command; see gpu_provision.hosts.facts.packages."""
        return toolkit_command(install_dir, configs)

    def process(self, output: list[str]) -> ToolkitRemains | None:
        """Read the command's output."""
        return parse_toolkit(output)


@host_operation
def remove_toolkit(install_dir: str) -> Commands:
    """Remove the toolkit's programs, and the directories of the stack that are empty then.

    Nothing is removed while a container, a process or a container runtime's configuration needs the programs: a
    container that was started with them could not be ended. Files of others stay, and the directories they are in.
    """
    record = read_host(("runtimes",))
    runtimes = record.runtimes if record else ()
    configs = {path for each in runtimes for path in (each.config, each.target, *each.drop_ins) if path}
    found = host.get_fact(GpuToolkitRemains, install_dir=install_dir, configs=tuple(sorted(configs)))
    if found is None or not found.files:
        host.noop("nothing of the container toolkit is on this host")
        return
    if found.uses or not found.is_sure:
        if seen := join_limited(found.uses, 3, "; "):
            consequence = "a container that was started with them could not be ended without them"
            way = "end what uses them, and run again"
        else:
            seen, consequence = "only root sees whether containers still use them", ""
            way = "connect as root, or set sudo: true in the ssh section"
        add_warning("toolkit", seen, install_dir=install_dir, consequence=consequence, way=way)
        return
    count = f", {len(found.hollow)} directories" if found.hollow else ""
    record_changes([f"container toolkit removed from {install_dir}/toolkit: {len(found.files)} files{count}"])
    folders = "".join(f"; rmdir {shlex.quote(path)} 2>/dev/null" for path in found.hollow)  # one that is used stays
    yield StringCommand(run_exclusively(f"rm -f {shlex.join(found.files)} && {{ :{folders}; : ; }}"))
