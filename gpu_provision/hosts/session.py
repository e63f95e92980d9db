"""One run of the host phase through pyinfra's API: plain data in, plain data out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import gevent
from gevent.pool import Pool
from pyinfra.api.command import FunctionCommand, PyinfraCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import BaseStateCallback, State, StateOperationHostData, StateStage
from pyinfra.context import ctx_host, ctx_state, state

from gpu_provision.hosts import connection, errors
from gpu_provision.hosts.changes.modules import reboot_reasons
from gpu_provision.hosts.connection import reached
from gpu_provision.hosts.deploy import host_prerequisites, host_teardown
from gpu_provision.hosts.errors import not_finished, not_seen, step_failed, unread
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.findings import (
    CHANGES,
    FINDINGS,
    REBOOT_REASONS,
    SAY,
    TROUBLE,
    explained,
    keep,
    report,
)
from gpu_provision.hosts.gate import GROUP
from gpu_provision.hosts.gpu_host import RECORD, GpuHost, read
from gpu_provision.hosts.maintenance import GUARD, Guard
from gpu_provision.model.findings import Finding, Severity

Emit = Callable[[dict[str, Any]], None]

PHASES = {"prerequisites": host_prerequisites, "judge": host_prerequisites, "teardown": host_teardown}
"""What a request may ask for."""

OUTCOME = ("system", "kernel", "modules", "pci", "driver")
"""Sections that tell how a host is in the end."""


class Progress(BaseStateCallback):
    """Tells what happens on each host; pyinfra calls it."""

    def __init__(self, emit: Emit) -> None:
        """Keep the function that tells."""
        self.emit = emit

    def host_before_connect(self, state: State, host: Host) -> None:  # noqa: ARG002 - pyinfra passes it
        """Tell which host is awaited."""
        _say(self.emit, host, "connecting")

    def operation_host_start(self, state: State, host: Host, op_hash: str) -> None:
        """Tell what a host is at."""
        if op_hash in state.ops[host]:
            title = ", ".join(state.op_meta[op_hash].names)
            _say(self.emit, host, title.split(" | ")[-1])

    def operation_host_success(self, state: State, host: Host, op_hash: str, retry_count: int = 0) -> None:  # noqa: ARG002 - as above
        """Tell what has been changed on a host: whoever is interrupted has no result."""
        if words := host.connector_data.get(CHANGES, {}).get(op_hash):
            self.emit({"changed": {"host": host.name, "words": list(words)}})


def _say(emit: Emit, host: Host, message: str) -> None:
    emit({"event": {"host": host.name, "message": message}})


class Warnings(logging.Handler):
    """Collects what pyinfra and its connectors warn about before there are hosts."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.messages.append(record.getMessage())


def run(request: dict[str, Any], emit: Emit, guard: Guard | None = None) -> dict[str, Any]:
    """Bring hosts to their prerequisites, or only look.

    Args:
        request: ``groups`` as pyinfra wants them, ``hosts`` to work on in order, ``phase``, ``dry_run``.

    Returns:
        ``outcomes``: host -> plain outcome; ``findings``: warnings; ``left_out``: why hosts are missing.
    """
    warnings = Warnings()
    logging.getLogger("pyinfra").addHandler(warnings)
    inventory = _inventory(request["groups"], request["hosts"])
    left_out = " ".join(warnings.messages) if len(inventory) < len(request["hosts"]) else ""
    if not len(inventory):  # pyinfra would take it for no inventory at all
        return {"outcomes": {}, "findings": [], "left_out": left_out}
    state = State(inventory, Config(), check_for_changes=request["dry_run"])
    state.add_callback_handler(Progress(emit))
    connection.ask_nobody()
    for host in inventory:
        host.connector_data[GUARD] = guard
        host.connector_data[SAY] = partial(_say, emit, host)
        connection.contain(host, host.connector_data[SAY])
    with ctx_state.use(state):
        _go(state, PHASES[request["phase"]], dry_run=request["dry_run"])
        errors_of = {host.name: failures(state, host) for host in inventory}
        records = _records(state)
    seen = {host.name: outcome(state, host, errors_of[host.name], records.get(host.name)) for host in inventory}
    return {"outcomes": seen, "findings": _warnings(inventory), "left_out": left_out}


def _inventory(groups: dict[str, Any], hosts: list[str]) -> Inventory:
    """Return pyinfra's inventory of the wanted hosts; it takes a host's data from whichever group has it."""
    wanted = {
        name: ([(host, data) for host, data in members if host in hosts], shared)
        for name, (members, shared) in groups.items()
    }
    return Inventory((hosts, {}), **wanted)


def _go(state: State, phase: Callable[[], Any], *, dry_run: bool) -> None:
    """Connect, prepare and execute; what fails is remembered with its host."""
    try:
        state.set_stage(StateStage.Connect)
        connect_all(state)
        state.set_stage(StateStage.Prepare)
        _each(state, lambda host: _prepare(host, phase))
        if not dry_run:
            _guard(state)
            state.set_stage(StateStage.Execute)
            run_ops(state)
    except PyinfraError:
        pass  # "No hosts remaining!": every host then has its own reason


def _each(state: State, work: Callable[[Host], None]) -> None:
    """Do something on all hosts that are left, at the same time."""
    gevent.joinall(
        [state.pool.spawn(_within, host, work) for host in state.inventory.get_active_hosts()],
        raise_error=True,
    )


def _within(host: Host, work: Callable[[Host], None]) -> None:
    with ctx_host.use(host):
        work(host)


def _prepare(host: Host, phase: Callable[[], Any]) -> None:
    """Find out what there is to do; whatever goes wrong is kept with the host."""
    try:
        phase()
    except Exception as error:  # noqa: BLE001 - what nobody foresaw on one host must not end the run for all
        if not host.connector_data.get(FINDINGS):
            keep(host, _explained(host, error))


def _guard(state: State) -> None:
    """Have no operation of one host end the run for all; pyinfra lets exceptions out of its body through."""
    for host in state.inventory:
        for operation in state.ops[host].values():
            operation.command_generator = _guarded(host, operation.command_generator)


def _guarded(host: Host, commands: Callable[[], Iterator[PyinfraCommand]]) -> Callable[[], Iterator[PyinfraCommand]]:
    def generate() -> Iterator[PyinfraCommand]:
        try:
            yield from commands()
        except Exception as error:  # noqa: BLE001 - as above
            yield FunctionCommand(report, _explained(host, error), {})

    return generate


def _explained(host: Host, error: Exception) -> tuple[Finding, ...]:
    """Return an exception of one host as a finding; what its connection met with comes before what pyinfra says."""
    reached = connection.reached(host)
    unread = isinstance(error, PyinfraError)  # "No hosts remaining!", when a fact of the last one fails
    return explained(host, [errors.unread(reached) if unread else errors.broke_down(error, reached)])


def _records(state: State) -> dict[str, HostRecord]:
    """Return every connected host as it is now, not as it was meant to be; read anew if something was executed."""
    records: dict[str, HostRecord] = {}

    def read(host: Host) -> None:
        known = None if state.is_executing else host.connector_data.get(RECORD)
        try:
            record = known or host.get_fact(GpuHost, sections=OUTCOME, _ignore_errors=True)
        except Exception:  # noqa: BLE001 - a host that cannot be read is not called ready
            return
        if record:
            records[host.name] = record

    connected: Iterable[Host] = state.activated_hosts
    gevent.joinall([state.pool.spawn(_within, host, read) for host in connected], raise_error=True)
    disconnect_all(state)
    return records


def _warnings(inventory: Inventory) -> list[dict[str, Any]]:
    found: list[Finding] = [
        finding
        for host in inventory
        for finding in host.connector_data.get(FINDINGS, [])
        if finding.severity is Severity.WARNING
    ]
    return [asdict(finding) for finding in found]


def drivers() -> dict[str, str]:
    """Return node -> version of a usable driver of the host's own, empty for none; hosts of this run that answer.

    While pyinfra prepares, hosts prepare side by side, so one that was not read yet is read now.
    """
    ours = [other for other in _others() if other.data.get("gpu_node")]
    # Not pyinfra's own pool: we are in it, and it may have one place only.
    records = Pool(state.config.PARALLEL).map(_record, ours)
    return {other.data.gpu_node: record.driver.usable for other, record in zip(ours, records, strict=True) if record}


def changed() -> int:
    """Return the number of hosts that this run has changed."""
    return sum(bool(changes(state, other)) for other in _others())


def _others() -> list[Host]:
    return [other for other in state.inventory.get_active_hosts() if GROUP not in other.groups]


def _record(other: Host) -> HostRecord | None:
    with ctx_host.use(other):
        try:
            return read(("kernel", "driver"))
        except Exception:  # noqa: BLE001 - whatever broke, that host says so itself; here it is one that nobody read
            return None


def failures(state: State, host: Host) -> tuple[Finding, ...]:
    """Return why a host failed in the run; empty if it did not. Comes before the host is read again."""
    if errors := _errors(host):
        return errors
    failed = _failed_step(state, host)
    if failed or host in state.failed_hosts:
        met: Finding | None = host.connector_data.get(TROUBLE)
        return (met or failed or unread(reached(host)),)
    return () if _is_finished(state, host) else (not_finished(reached(host)),)


def outcome(state: State, host: Host, errors: Sequence[Finding], record: HostRecord | None) -> dict[str, Any]:
    """Return a host's outcome as plain values: the fields of HostOutcome.

    Args:
        state: pyinfra's, after the run.
        host: One of its hosts.
        errors: What `failures` returned.
        record: The host as it is now; None if nobody could read it, and then it has failed.
    """
    errors = errors or (() if record else (not_seen(reached(host)),))
    return {
        "changes": changes(state, host),
        "failed": bool(errors),
        "reason": _in_short(errors),
        "reboot_needed": _needs_reboot(host, record),
        "gpus": len(record.pci.gpus) if record else None,
        "kernel": record.kernel.running if record else "",
        "driver": record.driver.usable if record else None,
        "errors": [asdict(finding) for finding in errors],
    }


def _errors(host: Host) -> tuple[Finding, ...]:
    kept: Iterable[Finding] = host.connector_data.get(FINDINGS, ())
    return tuple(finding for finding in kept if finding.severity is Severity.ERROR)


def _failed_step(state: State, host: Host) -> Finding | None:
    for op_hash, operation in state.ops[host].items():
        meta = operation.operation_meta
        if meta.is_complete() and meta.did_error():
            title = ", ".join(state.op_meta[op_hash].names).split(" | ")[-1]
            return step_failed(title, _last(meta.stderr_lines), reached(host))
    return None


def _is_finished(state: State, host: Host) -> bool:
    return not state.is_executing or all(_succeeded(operation) for operation in state.ops[host].values())


def _succeeded(operation: StateOperationHostData) -> bool:
    return bool(operation.operation_meta.is_complete() and operation.operation_meta.did_succeed())


def changes(state: State, host: Host) -> list[str]:
    """Return in words what operations changed, or would change if nothing was executed."""
    words = host.connector_data.get(CHANGES, {})
    done = {op_hash: not state.is_executing or _succeeded(operation) for op_hash, operation in state.ops[host].items()}
    return [each for op_hash in state.ops[host] if done[op_hash] for each in words.get(op_hash, ())]


def _needs_reboot(host: Host, record: HostRecord | None) -> bool:
    told = host.connector_data.get(REBOOT_REASONS)
    return bool(told or (record and reboot_reasons(record, nouveau_unwanted=_nouveau_unwanted(host))))


def _nouveau_unwanted(host: Host) -> bool:
    return bool((host.data.get("host_prerequisites") or {}).get("blacklist_nouveau", True))


def _last(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _in_short(errors: Sequence[Finding]) -> str:
    """Return why a host failed, most telling first; empty if it did not."""
    if not errors:
        return ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    seen = f" ({errors[0].evidence})" if errors[0].evidence else ""
    return "; ".join(filter(None, (f"{errors[0].what}{seen}", errors[0].fix))) + more
