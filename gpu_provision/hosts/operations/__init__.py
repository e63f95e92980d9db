"""Operations of the host phase, and what they share: the host's facts, descriptions, file diffs, findings."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import pyinfra
from gevent import GreenletExit
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import OperationError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import PyinfraOperation, operation
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state, host, state

from gpu_provision.hosts import errors
from gpu_provision.hosts.errors import unreadable_host
from gpu_provision.hosts.facts.host import ALL, HostFacts, command, parse
from gpu_provision.hosts.facts.kernel import canonical_name
from gpu_provision.hosts.messages import Maintenance
from gpu_provision.model import codes
from gpu_provision.model.findings import (
    Finding,
    ProvisionError,
    RunFailedError,
    Severity,
    escape_control_characters,
    one_line,
)

Commands = Generator[StringCommand | FunctionCommand, None, None]
"""What the body of an operation is."""

PATH = "PATH=$PATH:/usr/sbin:/sbin"
"""Before a command of root's: an ordinary user's may lack them, and sudo may keep it."""

Arguments = ParamSpec("Arguments")


def host_operation(body: Callable[Arguments, Commands]) -> PyinfraOperation[Arguments]:
    """Make an operation of its body; a ProvisionError in it fails the host with its findings, and no other host."""

    @operation()
    @wraps(body)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Commands:
        try:
            yield from body(*args, **kwargs)
        except ProvisionError as error:
            yield from fail_operation(*error.findings)

    return run


@dataclass(slots=True)
class HostRun:
    """What a run knows of one host; pyinfra keeps it with the host."""

    findings: list[Finding] = field(default_factory=list)
    changes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # operation's hash -> what it changes, in words
    # What the last command or connection met with. It counts only if the host fails: a lost connection may come back.
    last_error: Finding | None = None
    reboot_reasons: list[str] = field(default_factory=list)  # what operations know to take effect only after a reboot
    on_progress: Callable[[str], None] | None = None  # takes what the host waits for; without one it is logged
    maintenance: Maintenance | None = None
    # What the host was judged by; sections that an operation has changed since are not in its ``read`` any more.
    record: HostFacts | None = None


def run_of(host: Host) -> HostRun:
    """Return what the run knows of a host."""
    known: HostRun = host.connector_data.setdefault("gpu_provision", HostRun())
    return known


_COLOR = re.compile(r"(\x1b\[(?:0|1|3[1-6])m)")  # of pyinfra's own: what it logs is painted already


class _OnlyColors(logging.Filter):
    """Makes visible what would steer a terminal in any way but by pyinfra's colors: output of commands, above all."""

    def filter(self, record: logging.LogRecord) -> bool:
        parts = _COLOR.split(record.getMessage())
        parts[::2] = map(escape_control_characters, parts[::2])
        record.msg, record.args = "".join(parts), ()
        return True


logger.addFilter(_OnlyColors())


def show_diff(path: str, old: Sequence[str] | None, new: Sequence[str] | None) -> None:
    """Log what will change in a file if the user asked for it.

    Comes before the first change is yielded: while preparing, pyinfra reads no further than that.
    """
    if old == new or not state.config.DIFF or state.is_executing:
        return
    host.log(f"Will modify {path}" if old and new else f"Will {'create' if new else 'remove'} {path}")
    for line in unified_diff(old or (), new or (), lineterm="", n=1):
        if not line.startswith(("---", "+++")):
            host.log(f"  {line}")


def record_changes(words: Sequence[str], *sections: str) -> None:
    """Record what the operation changes, in words, and the sections to read again then; all if none is named."""
    run_of(host).changes[host.current_op_hash] = tuple(words)
    if words and state.is_executing:
        forget_sections(*sections)


def add_finding(finding: Finding) -> None:
    """Add a finding about this host, and log it on one line."""
    kept = run_of(host).findings
    if finding not in kept:
        kept.append(finding)
        host.log_styled(one_line(finding.what), fg="yellow", log_func=logger.warning)


def add_warning(entry: str, evidence: str = "", **words: Any) -> None:
    """Add a warning about this host, by its name in errors.toml."""
    add_finding(errors.finding(entry, host.name, evidence, **words))


def fail_host(entry: str, evidence: str = "", **words: Any) -> NoReturn:
    """Fail this host with an error by its name in errors.toml; raises RunFailedError."""
    raise RunFailedError(errors.finding(entry, host.name, evidence, **words))


def fail_operation(*findings: Finding) -> Commands:
    """Fail this host with findings, and no other one: while preparing, before anything is touched there."""
    findings = with_cause(host, findings)
    if state.is_executing:
        yield FunctionCommand(report_findings, findings, {})
        return
    if not pyinfra.is_cli:
        save_findings(host, findings)
        raise OperationError("\n".join(map(str, findings)))
    exclude_host(ctx_state.get(), ctx_host.get(), *findings)


def exclude_host(state: State, host: Host, *findings: Finding) -> NoReturn:
    """Take a host out of the run and the plan that pyinfra's command prepares; its exit code will be 1.

    Any other exception would end the preparation of all hosts, and `State.fail_hosts` asks a question that a dry run
    without a terminal cannot answer. Each host is prepared in a greenlet of its own, and this ends only that one.
    """
    report_findings(state, host, *findings)
    state.increment_warning_counter()
    state.failed_hosts.add(host)
    state.active_hosts.discard(host)
    state.ops[host].clear()
    raise GreenletExit


def report_findings(state: State, host: Host, *findings: Finding) -> bool:  # noqa: ARG001 - pyinfra recognises these names
    """Fail an operation with findings, without a traceback."""
    save_findings(host, findings)
    for finding in findings:
        color = "red" if finding.severity is Severity.ERROR else "yellow"
        for line in str(finding).splitlines():
            host.log_styled(line, fg=color, log_func=logger.error)
    return False


def save_findings(host: Host, findings: Iterable[Finding]) -> None:
    """Save findings about a host, each once: pyinfra runs the body of an operation twice."""
    kept = run_of(host).findings
    kept += [finding for finding in findings if finding not in kept]


def with_cause(host: Host, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with the reason in place of "could not be read", where the last command met with one."""
    met = run_of(host).last_error
    return tuple(met if met and finding.code == codes.UNREADABLE else finding for finding in findings)


class GpuHost(FactBase[HostFacts | None]):
    """What a host is; None if it did not answer to the end."""

    asked_at = 0.0

    def command(self, modules: Sequence[str] = (), sections: Sequence[str] = ALL) -> str:
        """Return the shell command; see gpu_provision.hosts.facts.host for the sections."""
        self.asked_at = time.time()
        return command(modules, sections)

    def process(self, output: list[str]) -> HostFacts | None:
        """Read the command's output."""
        return parse(output, asked_at=self.asked_at, answered_at=time.time())


def read_host(sections: Sequence[str], modules: Sequence[str] = ()) -> HostFacts | None:
    """Read some sections of this host; what preflight has read will do until an operation changes it."""
    known = run_of(host).record
    if known and known.read >= set(sections) and known.asked >= set(map(canonical_name, modules)):
        return known
    record: HostFacts | None = host.get_fact(GpuHost, modules=tuple(modules), sections=tuple(sections))
    return record


def require_host(sections: Sequence[str], modules: Sequence[str] = ()) -> HostFacts:
    """Read some sections of this host, as `read_host` does.

    Raises RunFailedError if it cannot be read, and for CoreOS, which no operation changes.
    """
    record = read_host(sections, modules)
    if record is None:
        raise RunFailedError(unreadable_host(host.name))
    if record.system.is_coreos:
        fail_host("coreos", system=record.system.title)
    return record


def forget_sections(*sections: str) -> None:
    """Have sections of this host read again when they are needed; all of them if none is named."""
    run = run_of(host)
    if run.record:
        run.record = replace(run.record, read=run.record.read - set(sections) if sections else frozenset())
