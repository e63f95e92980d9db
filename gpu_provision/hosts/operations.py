"""pyinfra operations for GPU hosts. Each reads the host once and changes only what differs."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import OperationError
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host, state

from gpu_provision.facts.modules import OWN_FILE as MODULES_FILE
from gpu_provision.facts.modules import canonical
from gpu_provision.facts.nouveau import OWN_FILE as NOUVEAU_FILE
from gpu_provision.facts.record import ALL, HostRecord
from gpu_provision.hosts import images, prerequisites
from gpu_provision.hosts.facts import GpuHost
from gpu_provision.hosts.prerequisites import FileLines
from gpu_provision.model.expectation import Expectation
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.preflight.judge import judge
from gpu_provision.preflight.subject import Subject

Commands = Generator[StringCommand | FunctionCommand, None, None]

FINDINGS = "gpu_provision_findings"
"""Key of ``host.connector_data`` for the findings about a host, kept for whoever drives the run."""

CHANGES = "gpu_provision_changes"
"""Likewise, for what operations change in words: operation's hash -> words."""

_PATH = "PATH=$PATH:/usr/sbin:/sbin"  # an ordinary user's may lack them, and sudo may keep it


RECORD = "gpu_provision_record"
"""Likewise, for the HostRecord that the host was judged by, before anything was changed."""


@operation()
def preflight(expected: Mapping[str, Any]) -> Commands:
    """Judge a host before anything is changed on it: an error fails the host; never a change.

    Args:
        expected: What the inventory expects of this machine: the fields of
            gpu_provision.model.expectation.Expectation, as ``host.data.gpu_expected`` has them.
    """
    wanted = Expectation.of(expected)
    record = host.connector_data.get(RECORD) or _read(ALL, wanted.kernel_modules)
    if record is None:
        yield from _refuse(prerequisites.unreadable(host.name))
        return
    host.connector_data[RECORD] = record
    findings = judge(Subject(wanted, record, images.answer(wanted, record)))
    for finding in findings:
        if finding.severity is Severity.WARNING:
            _tell(finding)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        yield from _refuse(*errors)


@operation()
def kernel_modules(names: Sequence[str]) -> Commands:
    """Have kernel modules loaded now and at every boot.

    Modules that are built into the kernel count as loaded. A module that the running kernel does not have fails
    the host, before anything is changed on it.

    Args:
        names: Names of modules, with dashes or underscores.
    """
    record = _read(("system", "kernel", "modules"), names)
    if record is None:
        yield from _refuse(prerequisites.unreadable(host.name))
        return
    changes = prerequisites.module_changes(record, names)
    if changes.missing:
        yield from _refuse(prerequisites.missing_modules(record, host.name, changes.missing))
        return
    _note(changes.words)
    _show_diff(MODULES_FILE, record.modules.own_file, changes.file)
    if changes.load:
        yield StringCommand(f"{_PATH} modprobe -a {shlex.join(changes.load)}")
    if changes.file_differs:
        yield _file_command(MODULES_FILE, changes.file)
    if not changes.load and not changes.file_differs:
        host.noop(f"kernel modules are present: {', '.join(names)}")


@operation()
def nouveau(blacklisted: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so: service(running=True)
    """Keep the nouveau driver away from the GPUs, now and at every boot; or take our blacklist back.

    The initramfs is rebuilt only if it does not know the blacklist. A nouveau that is in use stays until the
    next boot: that is reported as "reboot needed", and is not a change.

    Args:
        blacklisted: False removes our blacklist and leaves those of others alone.
    """
    record = _read(("system", "kernel", "modules", "nouveau"))
    if record is None:
        yield from _refuse(prerequisites.unreadable(host.name))
        return
    changes = prerequisites.nouveau_changes(record, blacklisted=blacklisted)
    _note(changes.words)
    _show_diff(NOUVEAU_FILE, record.nouveau.own_file, changes.file)
    if changes.file_differs:
        yield _file_command(NOUVEAU_FILE, changes.file)
    if changes.rebuild_initramfs:
        yield StringCommand(f"{_PATH} {_rebuild(record.nouveau.initramfs_tool, record.kernel.running)}")
    if changes.unload:
        yield StringCommand(f"{_PATH} modprobe -r nouveau")
    reasons = prerequisites.reboot_reasons(record, nouveau_unwanted=blacklisted)
    if reasons:
        _tell(prerequisites.reboot_needed(host.name, reasons))


def _read(sections: Sequence[str], modules: Sequence[str] = ()) -> HostRecord | None:
    """Read some sections of this host; while nothing is changed yet, what preflight has read will do."""
    known: HostRecord | None = None if state.is_executing else host.connector_data.get(RECORD)
    if known and known.read >= set(sections) and known.asked >= set(map(canonical, modules)):
        return known
    record: HostRecord | None = host.get_fact(GpuHost, modules=tuple(modules), sections=tuple(sections))
    return record


def _rebuild(tool: str, kernel: str) -> str:
    commands = {
        "update-initramfs": f"update-initramfs -u -k {shlex.quote(kernel)}",
        "dracut": f"dracut --force --kver {shlex.quote(kernel)}",
    }
    return commands[tool]


def _file_command(path: str, lines: FileLines) -> StringCommand:
    """Return the command that puts a file in place in one step, or removes it."""
    if lines is None:
        return StringCommand(f"rm -f {path}")
    directory, fresh = path.rsplit("/", 1)[0], f"{path}.new"
    return StringCommand(
        f"mkdir -p {directory} && printf '%s\\n' {shlex.join(lines)} > {fresh} && "
        f"chmod 644 {fresh} && mv {fresh} {path}"
    )


def _show_diff(path: str, old: FileLines, new: FileLines) -> None:
    """Log what will change in a file if the user asked for it.

    Comes before the first change is yielded: while preparing, pyinfra reads no further than that.
    """
    if old == new or not state.config.DIFF or state.is_executing:
        return
    host.log(f"Will modify {path}" if old and new else f"Will {'create' if new else 'remove'} {path}")
    for line in unified_diff(old or (), new or (), lineterm="", n=1):
        if not line.startswith(("---", "+++")):
            host.log(f"  {line}")


def _note(words: Sequence[str]) -> None:
    """Keep in words what the operation changes, for whoever drives the run."""
    host.connector_data.setdefault(CHANGES, {})[host.current_op_hash] = tuple(words)


def _tell(finding: Finding) -> None:
    """Keep a finding for whoever drives the run, and log it on one line."""
    kept = host.connector_data.setdefault(FINDINGS, [])
    if finding not in kept:
        kept.append(finding)
        host.log_styled(finding.what, fg="yellow", log_func=logger.warning)


def _refuse(*findings: Finding) -> Commands:
    """Fail this host with findings: while preparing, the run stops before anything is touched there."""
    if not state.is_executing:
        _keep(host, findings)
        raise OperationError("\n".join(map(str, findings)))
    yield FunctionCommand(report, findings, {})


def report(state: State, host: Host, *findings: Finding) -> bool:  # noqa: ARG001 - pyinfra recognises these names
    """Fail an operation with findings, without a traceback."""
    _keep(host, findings)
    for line in "\n".join(map(str, findings)).splitlines():
        host.log_styled(line, fg="red", log_func=logger.error)
    return False


def _keep(host: Host, findings: Iterable[Finding]) -> None:
    """Keep findings for whoever drives the run, each once: pyinfra runs what is here twice."""
    kept = host.connector_data.setdefault(FINDINGS, [])
    kept += [finding for finding in findings if finding not in kept]
